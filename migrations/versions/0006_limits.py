"""Limits and quotas of tenants, and restrictions of keys."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_COLUMNS = (("tenants", "limits"), ("keys", "restrictions"))


def upgrade() -> None:
    for table, column in _COLUMNS:
        op.add_column(table, sa.Column(column, sa.JSON, nullable=False, server_default=sa.text("'{}'")))


def downgrade() -> None:
    for table, column in _COLUMNS:
        op.drop_column(table, column)
