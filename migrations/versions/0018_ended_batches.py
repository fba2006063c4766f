"""Retention of batches, and indexes of what is unfinished.

Columns for the end of a batch and for its removal. Indexes for references to files, and partial indexes for batches and
chunks that servers read every second.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None
additive: bool = True

_UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
_INDEXES = (
    ("batches", "output_file_id"),
    ("batches", "error_file_id"),
    ("batches", "ended_at"),
    ("batches", "deleted_at"),
    ("files", "deleted_at"),
    ("file_uploads", "file_id"),
)


def upgrade() -> None:
    for name in ("ended_at", "deleted_at"):
        op.add_column("batches", sa.Column(name, sa.DateTime(timezone=True)))
    op.execute(
        "UPDATE batches SET ended_at = coalesce(completed_at, failed_at, cancelled_at, expired_at) "
        "WHERE state IN ('completed', 'failed', 'cancelled', 'expired')"
    )
    for table, column in _INDEXES:
        op.create_index(f"ix_{table}_{column}", table, [column])
    states = ", ".join(f"'{state}'" for state in _UNFINISHED)
    _create_partial("ix_batches_unfinished", "batches", ["created_at", "id"], f"state IN ({states})")
    _create_partial("ix_batch_chunks_unfinished", "batch_chunks", ["batch_id", "number"], "state != 'done'")


def downgrade() -> None:
    op.drop_index("ix_batch_chunks_unfinished", "batch_chunks")
    op.drop_index("ix_batches_unfinished", "batches")
    for table, column in _INDEXES:
        op.drop_index(f"ix_{table}_{column}", table)
    for name in ("deleted_at", "ended_at"):
        op.drop_column("batches", name)


def _create_partial(name: str, table: str, columns: list[str], condition: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(condition), postgresql_where=sa.text(condition))
