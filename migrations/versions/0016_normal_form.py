"""The normal form of a version, where the engine does not read the uploaded bytes themselves.

``config_digest``, ``weights_digest`` and the two sizes go on being what the engine reads. ``digest`` goes on being that
of the uploaded bytes. The new columns are null where both are the same, as in every row of an earlier release.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None
additive: bool = True

_INDEXED = ("normal_digest", "uploaded_config_digest", "uploaded_weights_digest")
_SIZES = ("uploaded_config_bytes", "uploaded_weights_bytes")
_NEW = (*_INDEXED, *_SIZES, "lora_head", "warnings")


def upgrade() -> None:
    for name in _INDEXED:
        op.add_column("versions", sa.Column(name, sa.String(64)))
        op.create_index(f"ix_versions_{name}", "versions", [name])
    for name in _SIZES:
        op.add_column("versions", sa.Column(name, sa.BigInteger))
    op.add_column("versions", sa.Column("lora_head", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("versions", sa.Column("warnings", sa.JSON, nullable=False, server_default=sa.text("'[]'")))


def downgrade() -> None:
    for name in _INDEXED:
        op.drop_index(f"ix_versions_{name}", "versions")
    for name in reversed(_NEW):
        op.drop_column("versions", name)
