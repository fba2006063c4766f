"""Tables of the registry.

Rows that other rows may reference are never deleted: tenants and adapters have ``deleted_at``, versions have a state.
Names are unique among the rows not deleted, by partial indexes that both SQLite and PostgreSQL support.
Integer ids are never reused: PostgreSQL's sequences do not go back, and SQLite uses AUTOINCREMENT.
"""

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    column,
    false,
    text,
)
from sqlalchemy.types import BigInteger

from app.database.schema import UtcDateTime, metadata
from app.domain.adapters import VersionState

tenants = Table(
    "tenants",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("slug", String(63), nullable=False),
    Column("name", String(100), nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("salt", String(64), nullable=False),
    Column("quota", JSON, nullable=False, server_default=text("'{}'")),
    Column("weight", Float, nullable=False, server_default=text("1")),
    Column("limits", JSON, nullable=False, server_default=text("'{}'")),
    Column("created_at", UtcDateTime, nullable=False),
    Column("deleted_at", UtcDateTime),
    sqlite_autoincrement=True,
)
Index(
    "uq_tenants_slug_live",
    tenants.c.slug,
    unique=True,
    sqlite_where=tenants.c.deleted_at.is_(None),
    postgresql_where=tenants.c.deleted_at.is_(None),
)

keys = Table(
    "keys",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id"), index=True),
    Column("name", String(100), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("hmac", String(64), nullable=False),
    Column("lifetime_s", BigInteger),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("restrictions", JSON, nullable=False, server_default=text("'{}'")),
    Column("owner", String(100)),
    Column("last_used_at", UtcDateTime),
)

# Sessions of the console: who signed in with which key. The cookie's token is stored as an HMAC.
sessions = Table(
    "sessions",
    metadata,
    Column("hmac", String(64), primary_key=True),
    Column("key_id", ForeignKey("keys.id"), nullable=False, index=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False, index=True),
)

adapters = Table(
    "adapters",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id"), nullable=False),
    Column("slug", String(63), nullable=False),
    Column("limits", JSON, nullable=False, server_default=text("'{}'")),
    Column("created_at", UtcDateTime, nullable=False),
    Column("deleted_at", UtcDateTime),
    sqlite_autoincrement=True,
)
Index(
    "uq_adapters_tenant_id_slug_live",
    adapters.c.tenant_id,
    adapters.c.slug,
    unique=True,
    sqlite_where=adapters.c.deleted_at.is_(None),
    postgresql_where=adapters.c.deleted_at.is_(None),
)

versions = Table(
    "versions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("adapter_id", ForeignKey("adapters.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("state_reason", Text),
    # Digest over the two files as uploaded.
    Column("digest", String(64), nullable=False),
    # The two files that the engine reads.
    Column("config_digest", String(64), nullable=False, index=True),
    Column("weights_digest", String(64), nullable=False, index=True),
    Column("config_bytes", BigInteger, nullable=False),
    Column("weights_bytes", BigInteger, nullable=False),
    # Digest over the files that the engine reads, and each uploaded file; null where the engine reads the uploaded
    # files.
    Column("normal_digest", String(64), index=True),
    Column("uploaded_config_digest", String(64), index=True),
    Column("uploaded_config_bytes", BigInteger),
    Column("uploaded_weights_digest", String(64), index=True),
    Column("uploaded_weights_bytes", BigInteger),
    # True if it adapts the head, which an engine serves only with a setting.
    Column("lora_head", Boolean, nullable=False, server_default=false()),
    Column("warnings", JSON, nullable=False, server_default=text("'[]'")),
    Column("rank", Integer, nullable=False),
    Column("manifest", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("created_by", String(16), nullable=False),
    # The base at the time of the check; null on rows of the first release.
    Column("base_name", String(200)),
    Column("base_digest", String(64)),
    Column("alpha", Float),
    Column("target_modules", JSON(none_as_null=True)),
    Column("parameters", BigInteger),
    Column("weights_dtype", String(40)),
    Column("peft_version", String(40)),
    Column("source", JSON, nullable=False, server_default=text("'{}'")),
    Column("uploaded_from", String(64)),
    Column("training_run", String(500)),
    Column("card", Text, nullable=False, server_default=text("''")),
    Column("defaults", JSON, nullable=False, server_default=text("'{}'")),
    UniqueConstraint("adapter_id", "number"),
    CheckConstraint(column("state").in_([state.value for state in VersionState]), name="state"),
    sqlite_autoincrement=True,
)
# The same bytes are one version of an adapter, unless that version is deleted or rejected.
Index(
    "uq_versions_adapter_id_digest_live",
    versions.c.adapter_id,
    versions.c.digest,
    unique=True,
    sqlite_where=versions.c.state.not_in(["deleted", "rejected"]),
    postgresql_where=versions.c.state.not_in(["deleted", "rejected"]),
)

version_labels = Table(
    "version_labels",
    metadata,
    Column("version_id", ForeignKey("versions.id"), primary_key=True),
    Column("name", String(63), primary_key=True),
    Column("value", String(200), nullable=False),
    Index("ix_version_labels_name_value", "name", "value"),
)

aliases = Table(
    "aliases",
    metadata,
    Column("adapter_id", ForeignKey("adapters.id"), primary_key=True),
    Column("name", String(63), primary_key=True),
    # Id of the newest row in alias_history: grows monotonically, also across a removal.
    Column("revision", Integer, nullable=False),
    Column("canary_id", Integer),
    Column("updated_at", UtcDateTime, nullable=False),
)

alias_targets = Table(
    "alias_targets",
    metadata,
    Column("adapter_id", ForeignKey("adapters.id"), primary_key=True),
    Column("alias", String(63), primary_key=True),
    Column("version_id", ForeignKey("versions.id"), primary_key=True, index=True),
    Column("weight", Integer, nullable=False),
)

alias_history = Table(
    "alias_history",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("adapter_id", ForeignKey("adapters.id"), nullable=False),
    Column("alias", String(63), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("actor", String(16), nullable=False),
    Column("action", String(16), nullable=False),
    Column("targets", JSON(none_as_null=True)),
    Column("reason", Text),
    Index("ix_alias_history_adapter_id_alias", "adapter_id", "alias"),
    sqlite_autoincrement=True,
)

# Tamper evidence for audit rows, see app/domain/audit.py. Written after the row's transaction.
audit_seals = Table(
    "audit_seals",
    metadata,
    Column("row_id", Integer, primary_key=True, autoincrement=False),
    Column("mac", String(64), nullable=False),
)

# At most one row: the last audit row that was trimmed. Its seal stays, because the next row chains to it.
audit_anchors = Table(
    "audit_anchors",
    metadata,
    Column("row_id", Integer, primary_key=True, autoincrement=False),
    Column("mac", String(64), nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", UtcDateTime, nullable=False, index=True),
    Column("actor", String(16), nullable=False),
    Column("action", String(32), nullable=False),
    Column("tenant", String(63)),
    Column("subject", String(200), nullable=False),
    Column("before", JSON(none_as_null=True)),
    Column("after", JSON(none_as_null=True)),
    sqlite_autoincrement=True,
)
