"""Amounts that were given back for requests whose records may still arrive."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "limit_reclaimed",
        sa.Column("request_id", sa.String(32), primary_key=True),
        sa.Column("taken", sa.JSON, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_limit_reclaimed_at", "limit_reclaimed", ["at"])


def downgrade() -> None:
    op.drop_table("limit_reclaimed")
