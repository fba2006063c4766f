"""The registry: tenants, keys, adapters, versions, aliases, audit."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    _create_tenants()
    _create_keys()
    _create_adapters()
    _create_versions()
    _create_aliases()
    _create_audit()


def downgrade() -> None:
    for table in ("audit", "aliases", "versions", "adapters", "keys", "tenants"):
        op.drop_table(table)


def _time(name: str, *, nullable: bool = False) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _unique_among(condition: str, name: str, table: str, columns: list[str]) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, unique=True, sqlite_where=where, postgresql_where=where)


def _create_tenants() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("slug", sa.String(63), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("salt", sa.String(64), nullable=False),
        _time("created_at"),
        _time("deleted_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
        sqlite_autoincrement=True,
    )
    _unique_among("deleted_at IS NULL", "uq_tenants_slug_live", "tenants", ["slug"])


def _create_keys() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("tenant_id", sa.Integer, nullable=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("hmac", sa.String(64), nullable=False),
        sa.Column("lifetime_s", sa.BigInteger, nullable=True),
        _time("created_at"),
        _time("expires_at", nullable=True),
        _time("revoked_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_keys_tenant_id_tenants"),
    )
    op.create_index("ix_keys_tenant_id", "keys", ["tenant_id"])


def _create_adapters() -> None:
    op.create_table(
        "adapters",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("tenant_id", sa.Integer, nullable=False),
        sa.Column("slug", sa.String(63), nullable=False),
        _time("created_at"),
        _time("deleted_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_adapters"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_adapters_tenant_id_tenants"),
        sqlite_autoincrement=True,
    )
    _unique_among("deleted_at IS NULL", "uq_adapters_tenant_id_slug_live", "adapters", ["tenant_id", "slug"])


def _create_versions() -> None:
    op.create_table(
        "versions",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("adapter_id", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("state_reason", sa.Text, nullable=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("config_digest", sa.String(64), nullable=False),
        sa.Column("weights_digest", sa.String(64), nullable=False),
        sa.Column("config_bytes", sa.BigInteger, nullable=False),
        sa.Column("weights_bytes", sa.BigInteger, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("manifest", sa.JSON, nullable=False),
        _time("created_at"),
        sa.Column("created_by", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_versions"),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name="fk_versions_adapter_id_adapters"),
        sa.UniqueConstraint("adapter_id", "number", name="uq_versions_adapter_id_number"),
        sa.CheckConstraint("state IN ('ready', 'quarantined', 'retired', 'deleted')", name="ck_versions_state"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_versions_config_digest", "versions", ["config_digest"])
    op.create_index("ix_versions_weights_digest", "versions", ["weights_digest"])
    _unique_among("state != 'deleted'", "uq_versions_adapter_id_digest_live", "versions", ["adapter_id", "digest"])


def _create_aliases() -> None:
    op.create_table(
        "aliases",
        sa.Column("adapter_id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version_id", sa.Integer, nullable=False),
        _time("updated_at"),
        sa.PrimaryKeyConstraint("adapter_id", "name", name="pk_aliases"),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name="fk_aliases_adapter_id_adapters"),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name="fk_aliases_version_id_versions"),
    )
    op.create_index("ix_aliases_version_id", "aliases", ["version_id"])


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, nullable=False),
        _time("at"),
        sa.Column("actor", sa.String(16), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=True),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("before", sa.JSON, nullable=True),
        sa.Column("after", sa.JSON, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at", "audit", ["at"])
