"""Usage: a record for each request, and hourly sums."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("request_id", sa.String(32), primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tenant_id", sa.Integer, nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("version_id", sa.Integer),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("cached_tokens", sa.Integer, nullable=False),
        sa.Column("output_tokens", sa.Integer, nullable=False),
        sa.Column("ttft_s", sa.Float),
        sa.Column("duration_s", sa.Float, nullable=False),
        sa.Column("load_s", sa.Float),
        sa.Column("finish_reason", sa.String(32)),
        sa.Column("status", sa.Integer, nullable=False),
    )
    op.create_index("ix_usage_at", "usage", ["at"])
    op.create_index("ix_usage_tenant_id_at", "usage", ["tenant_id", "at"])
    op.create_table(
        "usage_hours",
        sa.Column("hour", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("tenant_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("key_id", sa.String(16), primary_key=True),
        sa.Column("version_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("cold_loads", sa.BigInteger, nullable=False),
        sa.Column("load_s", sa.Float, nullable=False),
    )
    op.create_index("ix_usage_hours_tenant_id_hour", "usage_hours", ["tenant_id", "hour"])


def downgrade() -> None:
    op.drop_table("usage_hours")
    op.drop_table("usage")
