"""Tables of files and batches. All ids are random and made by this server."""

from collections.abc import Iterable

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    column,
    literal_column,
    text,
)
from sqlalchemy.types import BigInteger

from app.database.schema import UtcDateTime, metadata
from app.domain.batches import BatchState, ChunkState
from app.domain.files import FileUploadState

# A row stays, with deleted_at, until the deletion of its bytes is proven.
files = Table(
    "files",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id"), nullable=False, index=True),
    Column("purpose", String(16), nullable=False),
    Column("filename", String(255), nullable=False),
    # Size and SHA-256 of the content.
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    # SHA-256 of the blob: the content compressed with the file's id, so no two files share a blob.
    Column("digest", String(64), nullable=False, index=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("created_by", String(16), nullable=False),
    Column("expires_at", UtcDateTime, nullable=False, index=True),
    Column("deleted_at", UtcDateTime, index=True),
)

file_uploads = Table(
    "file_uploads",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id"), nullable=False, index=True),
    Column("state", String(16), nullable=False),
    Column("purpose", String(16), nullable=False),
    Column("filename", String(255), nullable=False),
    Column("mime_type", String(100), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    # Seconds from the file's creation to its expiry.
    Column("lifetime_s", Integer, nullable=False),
    Column("file_id", ForeignKey("files.id"), index=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("created_by", String(16), nullable=False),
    Column("expires_at", UtcDateTime, nullable=False, index=True),
    CheckConstraint(column("state").in_([state.value for state in FileUploadState]), name="state"),
)

file_parts = Table(
    "file_parts",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("upload_id", ForeignKey("file_uploads.id"), nullable=False, index=True),
    Column("bytes", BigInteger, nullable=False),
    Column("digest", String(64), nullable=False, index=True),
    Column("created_at", UtcDateTime, nullable=False),
)


def _literals(states: Iterable[str]) -> list[ColumnElement[str]]:
    return [literal_column(f"'{state}'") for state in states]


batches = Table(
    "batches",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id"), nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("endpoint", String(64), nullable=False),
    Column("input_file_id", ForeignKey("files.id"), nullable=False, index=True),
    Column("output_file_id", ForeignKey("files.id"), index=True),
    Column("error_file_id", ForeignKey("files.id"), index=True),
    # As the caller wrote it, such as 24h.
    Column("completion_window", String(8), nullable=False),
    # model: default of lines; width: most lines at once. See app/domain/batches.py.
    Column("options", JSON, nullable=False),
    Column("metadata", JSON(none_as_null=True)),
    # Seconds from the end of the batch to the expiry of its output.
    Column("output_lifetime_s", Integer, nullable=False),
    Column("errors", JSON(none_as_null=True)),
    Column("quote", JSON(none_as_null=True)),
    # Why no line runs at present: code, message.
    Column("blocked", JSON(none_as_null=True)),
    # Why the batch was cancelled, where the caller did not ask for it: code, message.
    Column("reason", JSON(none_as_null=True)),
    Column("total", Integer, nullable=False, server_default=text("0")),
    # Sums of the results, written in the same transaction.
    Column("completed", Integer, nullable=False, server_default=text("0")),
    Column("failed", Integer, nullable=False, server_default=text("0")),
    Column("prompt_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("cached_tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("output_tokens", BigInteger, nullable=False, server_default=text("0")),
    # Units of the currency, and the rest in picos, as in usage_hours.
    Column("cost_units", BigInteger, nullable=False, server_default=text("0")),
    Column("cost_picos", BigInteger, nullable=False, server_default=text("0")),
    # Node that validates or finalizes it, and the end of its lease.
    Column("node", String(32)),
    Column("leased_until", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("created_by", String(16), nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("in_progress_at", UtcDateTime),
    Column("finalizing_at", UtcDateTime),
    Column("completed_at", UtcDateTime),
    Column("failed_at", UtcDateTime),
    Column("expired_at", UtcDateTime),
    Column("cancelling_at", UtcDateTime),
    Column("cancelled_at", UtcDateTime),
    # Time of the final state.
    Column("ended_at", UtcDateTime, index=True),
    # Time at which retention hid the batch; the row stays for some days, as a position in lists.
    Column("deleted_at", UtcDateTime, index=True),
    CheckConstraint(column("state").in_([state.value for state in BatchState]), name="state"),
    Index("ix_batches_tenant_id_created_at", "tenant_id", "created_at"),
)

# In literals, because a partial index serves no condition with parameters.
UNFINISHED_BATCH = batches.c.state.in_(_literals(state.value for state in BatchState if not state.final))
# The servers read it every second; it does not grow with batches that have ended.
Index(
    "ix_batches_unfinished",
    batches.c.created_at,
    batches.c.id,
    sqlite_where=UNFINISHED_BATCH,
    postgresql_where=UNFINISHED_BATCH,
)

# At most 256 lines of one version.
batch_chunks = Table(
    "batch_chunks",
    metadata,
    Column("batch_id", ForeignKey("batches.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    # Null: the base model.
    Column("version_id", Integer, index=True),
    # Name that resolves to this version only: pricing@3, retail/pricing@3, or the base's name.
    Column("model", String(200), nullable=False),
    # Triples of line number, and offset and length of the line in the input file, in bytes.
    Column("lines", JSON, nullable=False),
    Column("state", String(16), nullable=False),
    Column("node", String(32), index=True),
    Column("leased_until", UtcDateTime),
    # Blob with the results of a chunk that is done, in order of their lines.
    Column("segment", String(64), index=True),
    CheckConstraint(column("state").in_([state.value for state in ChunkState]), name="state"),
    Index("ix_batch_chunks_state_leased_until", "state", "leased_until"),
)

UNFINISHED_CHUNK = batch_chunks.c.state != _literals([ChunkState.DONE.value])[0]
Index(
    "ix_batch_chunks_unfinished",
    batch_chunks.c.batch_id,
    batch_chunks.c.number,
    sqlite_where=UNFINISHED_CHUNK,
    postgresql_where=UNFINISHED_CHUNK,
)

# Results of chunks that are not done yet.
batch_results = Table(
    "batch_results",
    metadata,
    Column("batch_id", ForeignKey("batches.id"), primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("chunk", Integer, nullable=False),
    # True: a line of the output file; False: of the error file.
    Column("succeeded", Boolean, nullable=False),
    # The line of the file, as JSON.
    Column("content", Text, nullable=False),
    Index("ix_batch_results_batch_id_chunk", "batch_id", "chunk"),
)
