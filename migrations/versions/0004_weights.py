"""A tenant's share of the engine against that of others."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("weight", sa.Float, nullable=False, server_default=sa.text("1")))


def downgrade() -> None:
    # Unlike the batch mode of 0002 this copies no table, so SQLite's ids are still never given twice.
    op.drop_column("tenants", "weight")
