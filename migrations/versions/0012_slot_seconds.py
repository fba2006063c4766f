"""For how long requests had slots."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_TABLES = ("usage", "usage_hours")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("slot_s", sa.Float, nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "slot_s")
