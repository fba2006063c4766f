"""The registry's tables.

Rows that others may still speak of are never removed: tenants and adapters carry ``deleted_at``, versions a
state. Names are unique among the living only, by partial indexes that SQLite and PostgreSQL both have.
Integer ids are never given twice: PostgreSQL's sequences do not go back, SQLite is told with AUTOINCREMENT.
"""

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    column,
)
from sqlalchemy.types import BigInteger

from app.registry import VersionState

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, UTC on the way in and out; SQLite keeps no zone, so it is put back here."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"timestamp: found {value.isoformat()} without a zone, allowed aware datetimes")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


tenants = Table(
    "tenants",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("slug", String(63), nullable=False),
    Column("name", String(100), nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("salt", String(64), nullable=False),
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
)

adapters = Table(
    "adapters",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id"), nullable=False),
    Column("slug", String(63), nullable=False),
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
    Column("digest", String(64), nullable=False),
    Column("config_digest", String(64), nullable=False, index=True),
    Column("weights_digest", String(64), nullable=False, index=True),
    Column("config_bytes", BigInteger, nullable=False),
    Column("weights_bytes", BigInteger, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("manifest", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("created_by", String(16), nullable=False),
    UniqueConstraint("adapter_id", "number"),
    CheckConstraint(column("state").in_([state.value for state in VersionState]), name="state"),
    sqlite_autoincrement=True,
)
# The same bytes are one version of an adapter, until it is deleted.
Index(
    "uq_versions_adapter_id_digest_live",
    versions.c.adapter_id,
    versions.c.digest,
    unique=True,
    sqlite_where=versions.c.state != "deleted",
    postgresql_where=versions.c.state != "deleted",
)

aliases = Table(
    "aliases",
    metadata,
    Column("adapter_id", ForeignKey("adapters.id"), primary_key=True),
    Column("name", String(63), primary_key=True),
    Column("version_id", ForeignKey("versions.id"), nullable=False, index=True),
    Column("updated_at", UtcDateTime, nullable=False),
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
