"""Where a trimmed audit trail begins."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "audit_anchors",
        sa.Column("row_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("mac", sa.String(64), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("audit_anchors")
