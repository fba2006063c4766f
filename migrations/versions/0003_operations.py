"""Tables of canaries, pins, shares, uploads, idempotency answers, nodes and deletions."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_TABLES = (
    "deletion_nodes",
    "deletions",
    "nodes",
    "idempotency",
    "uploads",
    "shares",
    "pins",
    "canary_figures",
    "canaries",
)


def upgrade() -> None:
    _create_canaries()
    _create_canary_figures()
    _create_pins_and_shares()
    _create_uploads()
    _create_idempotency()
    _create_deletions()


def downgrade() -> None:
    for table in _TABLES:
        op.drop_table(table)


def _time(name: str, *, nullable: bool = False) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _create_canaries() -> None:
    op.create_table(
        "canaries",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("adapter_id", sa.Integer, nullable=False),
        sa.Column("alias", sa.String(63), nullable=False),
        sa.Column("baseline_id", sa.Integer, nullable=False),
        sa.Column("candidate_id", sa.Integer, nullable=False),
        sa.Column("policy", sa.JSON, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        _time("step_started_at"),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.JSON),
        _time("created_at"),
        sa.Column("created_by", sa.String(16), nullable=False),
        _time("ended_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_canaries"),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name="fk_canaries_adapter_id_adapters"),
        sa.ForeignKeyConstraint(["baseline_id"], ["versions.id"], name="fk_canaries_baseline_id_versions"),
        sa.ForeignKeyConstraint(["candidate_id"], ["versions.id"], name="fk_canaries_candidate_id_versions"),
        sa.CheckConstraint("state IN ('running', 'promoted', 'rolled_back', 'cancelled')", name="ck_canaries_state"),
        sqlite_autoincrement=True,
    )
    running = sa.text("state = 'running'")
    name, columns = "uq_canaries_adapter_id_alias_running", ["adapter_id", "alias"]
    op.create_index(name, "canaries", columns, unique=True, sqlite_where=running, postgresql_where=running)


def _create_canary_figures() -> None:
    op.create_table(
        "canary_figures",
        sa.Column("canary_id", sa.Integer, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("node", sa.String(32), nullable=False),
        sa.Column("version_id", sa.Integer, nullable=False),
        sa.Column("requests", sa.Integer, nullable=False),
        sa.Column("errors", sa.Integer, nullable=False),
        sa.Column("empties", sa.Integer, nullable=False),
        sa.Column("ttft", sa.JSON, nullable=False),
        _time("updated_at"),
        sa.PrimaryKeyConstraint("canary_id", "revision", "node", "version_id", name="pk_canary_figures"),
        sa.ForeignKeyConstraint(["canary_id"], ["canaries.id"], name="fk_canary_figures_canary_id_canaries"),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name="fk_canary_figures_version_id_versions"),
    )


def _create_pins_and_shares() -> None:
    op.create_table(
        "pins",
        sa.Column("version_id", sa.Integer, nullable=False),
        _time("created_at"),
        sa.Column("created_by", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("version_id", name="pk_pins"),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name="fk_pins_version_id_versions"),
    )
    op.create_table(
        "shares",
        sa.Column("adapter_id", sa.Integer, nullable=False),
        sa.Column("recipient", sa.String(63), nullable=False),
        sa.Column("tenant_id", sa.Integer),
        _time("created_at"),
        sa.Column("created_by", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("adapter_id", "recipient", name="pk_shares"),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name="fk_shares_adapter_id_adapters"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_shares_tenant_id_tenants"),
    )
    op.create_index("ix_shares_tenant_id", "shares", ["tenant_id"])


def _create_uploads() -> None:
    states = "'open', 'finishing', 'done', 'failed', 'aborted'"
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant_id", sa.Integer, nullable=False),
        sa.Column("adapter", sa.String(63), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("files", sa.JSON, nullable=False),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("result", sa.Integer),
        sa.Column("error", sa.JSON),
        _time("created_at"),
        _time("updated_at"),
        _time("expires_at"),
        sa.Column("created_by", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_uploads"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_uploads_tenant_id_tenants"),
        sa.CheckConstraint(f"state IN ({states})", name="ck_uploads_state"),
    )
    op.create_index("ix_uploads_tenant_id", "uploads", ["tenant_id"])
    op.create_index("ix_uploads_expires_at", "uploads", ["expires_at"])


def _create_idempotency() -> None:
    op.create_table(
        "idempotency",
        sa.Column("actor", sa.String(16), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("request", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("body", sa.LargeBinary),
        sa.Column("headers", sa.JSON),
        _time("created_at"),
        sa.PrimaryKeyConstraint("actor", "key", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_created_at", "idempotency", ["created_at"])


def _create_deletions() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        _time("started_at"),
        _time("seen_at"),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
    )
    op.create_table(
        "deletions",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("versions", sa.JSON, nullable=False),
        _time("requested_at"),
        sa.Column("requested_by", sa.String(16), nullable=False),
        sa.Column("forced", sa.Boolean, nullable=False),
        sa.Column("blobs", sa.JSON),
        _time("finished_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_deletions"),
    )
    op.create_index("ix_deletions_tenant", "deletions", ["tenant"])
    op.create_index("ix_deletions_finished_at", "deletions", ["finished_at"])
    op.create_table(
        "deletion_nodes",
        sa.Column("deletion_id", sa.String(32), nullable=False),
        sa.Column("node", sa.String(32), nullable=False),
        _time("engine_gone_at", nullable=True),
        _time("disk_gone_at", nullable=True),
        sa.PrimaryKeyConstraint("deletion_id", "node", name="pk_deletion_nodes"),
        sa.ForeignKeyConstraint(["deletion_id"], ["deletions.id"], name="fk_deletion_nodes_deletion_id_deletions"),
    )
