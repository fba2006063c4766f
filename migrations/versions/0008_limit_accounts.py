"""Shared accounts of rate limits, for several servers."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "limit_accounts",
        sa.Column("subject", sa.String(80), primary_key=True),
        sa.Column("account", sa.JSON, nullable=False),
    )
    op.create_table(
        "limit_grants",
        sa.Column("request_id", sa.String(32), primary_key=True),
        sa.Column("node_id", sa.String(32), nullable=False),
        sa.Column("taken", sa.JSON, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_limit_grants_node_id", "limit_grants", ["node_id"])
    op.create_index("ix_limit_grants_expires_at", "limit_grants", ["expires_at"])


def downgrade() -> None:
    op.drop_table("limit_grants")
    op.drop_table("limit_accounts")
