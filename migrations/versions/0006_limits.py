"""What tenants and keys may use."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    for table in ("tenants", "keys"):
        op.add_column(table, sa.Column("limits", sa.JSON, nullable=False, server_default=sa.text("'{}'")))


def downgrade() -> None:
    for table in ("keys", "tenants"):
        op.drop_column(table, "limits")
