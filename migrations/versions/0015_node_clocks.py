"""How far a node's clock is from the database's."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None
additive: bool = True


def upgrade() -> None:
    op.add_column("nodes", sa.Column("clock_offset_s", sa.Float))


def downgrade() -> None:
    op.drop_column("nodes", "clock_offset_s")
