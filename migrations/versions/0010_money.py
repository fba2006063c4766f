"""Prices, and what requests cost."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_HOUR_COLUMNS = ("cost_units", "cost_picos")


def upgrade() -> None:
    op.create_table(
        "prices",
        sa.Column("subject", sa.String(80), primary_key=True),
        sa.Column("prompt", sa.String(40), nullable=False),
        sa.Column("cached", sa.String(40), nullable=False),
        sa.Column("output", sa.String(40), nullable=False),
    )
    op.add_column("usage", sa.Column("cost", sa.String(40), nullable=False, server_default=sa.text("'0'")))
    for column in _HOUR_COLUMNS:
        op.add_column("usage_hours", sa.Column(column, sa.BigInteger, nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    for column in _HOUR_COLUMNS:
        op.drop_column("usage_hours", column)
    op.drop_column("usage", "cost")
    op.drop_table("prices")
