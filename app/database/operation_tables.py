"""Tables of operations on the registry, one per use case; each has a module in :mod:`app.database`."""

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    column,
)

from app.database.schema import UtcDateTime, metadata

canaries = Table(
    "canaries",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("adapter_id", ForeignKey("adapters.id"), nullable=False),
    Column("alias", String(63), nullable=False),
    Column("baseline_id", ForeignKey("versions.id"), nullable=False),
    Column("candidate_id", ForeignKey("versions.id"), nullable=False),
    Column("policy", JSON, nullable=False),
    Column("step", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("step_started_at", UtcDateTime, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", JSON(none_as_null=True)),
    Column("created_at", UtcDateTime, nullable=False),
    Column("created_by", String(16), nullable=False),
    Column("ended_at", UtcDateTime),
    CheckConstraint(column("state").in_(["running", "promoted", "rolled_back", "cancelled"]), name="state"),
    sqlite_autoincrement=True,
)
Index(
    "uq_canaries_adapter_id_alias_running",
    canaries.c.adapter_id,
    canaries.c.alias,
    unique=True,
    sqlite_where=canaries.c.state == "running",
    postgresql_where=canaries.c.state == "running",
)

canary_figures = Table(
    "canary_figures",
    metadata,
    Column("canary_id", ForeignKey("canaries.id"), primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("node", String(32), primary_key=True),
    Column("version_id", ForeignKey("versions.id"), primary_key=True),
    Column("requests", Integer, nullable=False),
    Column("errors", Integer, nullable=False),
    Column("empties", Integer, nullable=False),
    Column("ttft", JSON, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

pins = Table(
    "pins",
    metadata,
    Column("version_id", ForeignKey("versions.id"), primary_key=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("created_by", String(16), nullable=False),
)

shares = Table(
    "shares",
    metadata,
    Column("adapter_id", ForeignKey("adapters.id"), primary_key=True),
    # As given; tenant_id is null if no tenant has this slug (see app.services.catalog.shares).
    Column("recipient", String(63), primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id"), index=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("created_by", String(16), nullable=False),
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id"), nullable=False, index=True),
    Column("adapter", String(63), nullable=False),
    Column("state", String(16), nullable=False),
    Column("files", JSON, nullable=False),
    Column("options", JSON, nullable=False),
    Column("result", Integer),
    Column("error", JSON(none_as_null=True)),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False, index=True),
    Column("created_by", String(16), nullable=False),
    CheckConstraint(column("state").in_(["open", "finishing", "done", "failed", "aborted"]), name="state"),
)

# Reasons of refused uploads, shown to their tenant for some weeks.
upload_refusals = Table(
    "upload_refusals",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id"), nullable=False),
    Column("adapter", String(63), nullable=False),
    Column("at", UtcDateTime, nullable=False, index=True),
    Column("key_id", String(16), nullable=False),
    # Digest of the files; null if they did not arrive whole.
    Column("digest", String(64)),
    # The first reasons, and the number of all.
    Column("reasons", JSON, nullable=False),
    Column("reason_count", Integer, nullable=False),
    Index("ix_upload_refusals_tenant_id_id", "tenant_id", "id"),
    sqlite_autoincrement=True,
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("actor", String(16), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("request", String(64), nullable=False),
    Column("status", Integer),
    Column("body", LargeBinary),
    Column("headers", JSON(none_as_null=True)),
    Column("created_at", UtcDateTime, nullable=False, index=True),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
    Column("clock_offset_s", Float),
    # Null for a node of a release that wrote none of them.
    Column("role", String(16)),
    Column("base_digest", String(64)),
    Column("slots", Integer),
    Column("snapshot", JSON(none_as_null=True)),
    Column("snapshot_at", UtcDateTime),
)

deletions = Table(
    "deletions",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("tenant", String(63), nullable=False, index=True),
    Column("subject", String(200), nullable=False),
    Column("versions", JSON, nullable=False),
    Column("requested_at", UtcDateTime, nullable=False),
    Column("requested_by", String(16), nullable=False),
    Column("forced", Boolean, nullable=False),
    Column("blobs", JSON(none_as_null=True)),
    # A file whose local copies every node removes first; null for versions, parts and segments.
    Column("file_id", String(40), index=True),
    Column("finished_at", UtcDateTime, index=True),
)

deletion_nodes = Table(
    "deletion_nodes",
    metadata,
    Column("deletion_id", ForeignKey("deletions.id"), primary_key=True),
    Column("node", String(32), primary_key=True),
    Column("engine_gone_at", UtcDateTime),
    Column("disk_gone_at", UtcDateTime),
)

installation = Table(
    "installation",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("value", Text, nullable=False),
)
