"""Files, uploads of files in parts, deletions of files, batches, chunks and results, the price factor of batches."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None
additive: bool = True

_BATCH_STATES = ["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
_UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
_SUMS = ("prompt_tokens", "cached_tokens", "output_tokens", "cost_units", "cost_picos")
_TIMES = ["in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]


def upgrade() -> None:
    _create_files()
    _create_batches()
    _create_chunks()
    op.add_column("deletions", sa.Column("file_id", sa.String(40)))
    op.create_index("ix_deletions_file_id", "deletions", ["file_id"])
    op.add_column("prices", sa.Column("batch", sa.String(40), nullable=False, server_default=sa.text("'1'")))


def downgrade() -> None:
    op.drop_column("prices", "batch")
    op.drop_index("ix_deletions_file_id", "deletions")
    op.drop_column("deletions", "file_id")
    for table in ("batch_results", "batch_chunks", "batches", "file_parts", "file_uploads", "files"):
        op.drop_table(table)


def _time(name: str, *, nullable: bool = False) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _id() -> sa.Column[str]:
    return sa.Column("id", sa.String(40), nullable=False)


def _create_files() -> None:
    op.create_table(
        "files",
        _id(),
        sa.Column("tenant_id", sa.Integer, nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("filename", sa.String(255), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        _time("created_at"),
        sa.Column("created_by", sa.String(16), nullable=False),
        _time("expires_at"),
        _time("deleted_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_files_tenant_id_tenants"),
    )
    for column in ("tenant_id", "digest", "expires_at", "deleted_at"):
        op.create_index(f"ix_files_{column}", "files", [column])
    op.create_table(
        "file_uploads",
        _id(),
        sa.Column("tenant_id", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("filename", sa.String(255), nullable=False),
        sa.Column("mime_type", sa.String(100), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("lifetime_s", sa.Integer, nullable=False),
        sa.Column("file_id", sa.String(40)),
        _time("created_at"),
        sa.Column("created_by", sa.String(16), nullable=False),
        _time("expires_at"),
        sa.PrimaryKeyConstraint("id", name="pk_file_uploads"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_file_uploads_tenant_id_tenants"),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], name="fk_file_uploads_file_id_files"),
        _check("file_uploads", ["pending", "completed", "cancelled", "expired"]),
    )
    for column in ("tenant_id", "file_id", "expires_at"):
        op.create_index(f"ix_file_uploads_{column}", "file_uploads", [column])
    op.create_table(
        "file_parts",
        _id(),
        sa.Column("upload_id", sa.String(40), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        _time("created_at"),
        sa.PrimaryKeyConstraint("id", name="pk_file_parts"),
        sa.ForeignKeyConstraint(["upload_id"], ["file_uploads.id"], name="fk_file_parts_upload_id_file_uploads"),
    )
    for column in ("upload_id", "digest"):
        op.create_index(f"ix_file_parts_{column}", "file_parts", [column])


def _create_batches() -> None:
    op.create_table(
        "batches",
        _id(),
        sa.Column("tenant_id", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        *(
            sa.Column(f"{kind}_file_id", sa.String(40), nullable=kind != "input")
            for kind in ("input", "output", "error")
        ),
        sa.Column("completion_window", sa.String(8), nullable=False),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("metadata", sa.JSON),
        sa.Column("output_lifetime_s", sa.Integer, nullable=False),
        *(sa.Column(name, sa.JSON) for name in ("errors", "quote", "blocked", "reason")),
        *(_sum(name, sa.Integer()) for name in ("total", "completed", "failed")),
        *(_sum(name, sa.BigInteger()) for name in _SUMS),
        sa.Column("node", sa.String(32)),
        _time("leased_until", nullable=True),
        _time("created_at"),
        sa.Column("created_by", sa.String(16), nullable=False),
        _time("expires_at"),
        *(_time(f"{state}_at", nullable=True) for state in _TIMES),
        _time("ended_at", nullable=True),
        _time("deleted_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_batches_tenant_id_tenants"),
        *(
            sa.ForeignKeyConstraint([f"{kind}_file_id"], ["files.id"], name=f"fk_batches_{kind}_file_id_files")
            for kind in ("input", "output", "error")
        ),
        _check("batches", _BATCH_STATES),
    )
    files = [[f"{kind}_file_id"] for kind in ("input", "output", "error")]
    for columns in (["state"], *files, ["ended_at"], ["deleted_at"], ["tenant_id", "created_at"]):
        op.create_index(f"ix_batches_{'_'.join(columns)}", "batches", columns)
    states = ", ".join(f"'{state}'" for state in _UNFINISHED)
    _create_partial("ix_batches_unfinished", "batches", ["created_at", "id"], f"state IN ({states})")


def _create_chunks() -> None:
    op.create_table(
        "batch_chunks",
        sa.Column("batch_id", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("version_id", sa.Integer),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("lines", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("node", sa.String(32)),
        _time("leased_until", nullable=True),
        sa.Column("segment", sa.String(64)),
        sa.PrimaryKeyConstraint("batch_id", "number", name="pk_batch_chunks"),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name="fk_batch_chunks_batch_id_batches"),
        _check("batch_chunks", ["waiting", "running", "done"]),
    )
    for columns in (["version_id"], ["node"], ["segment"], ["state", "leased_until"]):
        op.create_index(f"ix_batch_chunks_{'_'.join(columns)}", "batch_chunks", columns)
    _create_partial("ix_batch_chunks_unfinished", "batch_chunks", ["batch_id", "number"], "state != 'done'")
    op.create_table(
        "batch_results",
        sa.Column("batch_id", sa.String(40), nullable=False),
        sa.Column("line", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("chunk", sa.Integer, nullable=False),
        sa.Column("succeeded", sa.Boolean, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("batch_id", "line", name="pk_batch_results"),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name="fk_batch_results_batch_id_batches"),
    )
    op.create_index("ix_batch_results_batch_id_chunk", "batch_results", ["batch_id", "chunk"])


def _create_partial(name: str, table: str, columns: list[str], condition: str) -> None:
    """Create an index of what servers read every second."""
    op.create_index(name, table, columns, sqlite_where=sa.text(condition), postgresql_where=sa.text(condition))


def _sum(name: str, kind: sa.types.TypeEngine[int]) -> sa.Column[int]:
    return sa.Column(name, kind, nullable=False, server_default=sa.text("0"))


def _check(table: str, states: Sequence[str]) -> sa.CheckConstraint:
    return sa.CheckConstraint(sa.column("state").in_(states), name=f"ck_{table}_state")
