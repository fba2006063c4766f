"""Role, base, slots and engine state of a node."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None
additive: bool = True

_COLUMNS = ("role", "base_digest", "slots", "snapshot", "snapshot_at")


def upgrade() -> None:
    op.add_column("nodes", sa.Column("role", sa.String(16)))
    op.add_column("nodes", sa.Column("base_digest", sa.String(64)))
    op.add_column("nodes", sa.Column("slots", sa.Integer))
    op.add_column("nodes", sa.Column("snapshot", sa.JSON))
    op.add_column("nodes", sa.Column("snapshot_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    for column in reversed(_COLUMNS):
        op.drop_column("nodes", column)
