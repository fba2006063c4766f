"""Owner and last use of keys, sessions of the console."""

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
    op.create_table(
        "sessions",
        sa.Column("hmac", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_sessions_key_id_keys"),
        sa.PrimaryKeyConstraint("hmac", name="pk_sessions"),
    )
    op.create_index("ix_sessions_key_id", "sessions", ["key_id"])
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])


def downgrade() -> None:
    op.drop_table("sessions")
    op.drop_column("keys", "last_used_at")
    op.drop_column("keys", "owner")
