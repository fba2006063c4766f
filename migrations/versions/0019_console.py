"""Owner and last use of keys, sessions of the console, refused uploads, hourly latencies."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None
additive: bool = True


def upgrade() -> None:
    op.add_column("keys", sa.Column("owner", sa.String(100)))
    op.add_column("keys", sa.Column("last_used_at", sa.DateTime(timezone=True)))
    op.create_table(
        "sessions",
        sa.Column("hmac", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_sessions_key_id_keys"),
        sa.PrimaryKeyConstraint("hmac", name="pk_sessions"),
    )
    op.create_index("ix_sessions_key_id", "sessions", ["key_id"])
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_table(
        "upload_refusals",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("tenant_id", sa.Integer, nullable=False),
        sa.Column("adapter", sa.String(63), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64)),
        sa.Column("reasons", sa.JSON, nullable=False),
        sa.Column("reason_count", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_upload_refusals_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_upload_refusals"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_upload_refusals_at", "upload_refusals", ["at"])
    op.create_index("ix_upload_refusals_tenant_id_id", "upload_refusals", ["tenant_id", "id"])
    op.create_table(
        "usage_latencies",
        *(sa.Column(name, sa.Integer, autoincrement=False, nullable=False) for name in ("hour", "tenant_id")),
        sa.Column("key_id", sa.String(16), nullable=False),
        *(sa.Column(name, sa.Integer, autoincrement=False, nullable=False) for name in ("version_id", "bucket")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("ttft", "duration")),
        sa.PrimaryKeyConstraint("hour", "tenant_id", "key_id", "version_id", "bucket", name="pk_usage_latencies"),
    )
    read = ["bucket", "ttft", "duration"]
    op.create_index("ix_usage_latencies_hour_bucket", "usage_latencies", ["hour", *read])
    op.create_index("ix_usage_latencies_tenant_id_hour", "usage_latencies", ["tenant_id", "hour", *read])


def downgrade() -> None:
    op.drop_table("usage_latencies")
    op.drop_table("upload_refusals")
    op.drop_table("sessions")
    op.drop_column("keys", "last_used_at")
    op.drop_column("keys", "owner")
