"""Facts about the installation as a whole: its id, and how to tell a wrong pepper."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None
additive: bool = True


def upgrade() -> None:
    op.create_table(
        "installation",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("installation")
