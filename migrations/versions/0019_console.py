"""Owner and last use of keys."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0019"
down_revision: str | None = "0017"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None
additive: bool = True


def upgrade() -> None:
    op.add_column("keys", sa.Column("owner", sa.String(100)))
    op.add_column("keys", sa.Column("last_used_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("keys", "last_used_at")
    op.drop_column("keys", "owner")
