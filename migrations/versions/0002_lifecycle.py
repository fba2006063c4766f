"""Descriptions of versions, weighted aliases and their history."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_OLD_STATES = "'ready', 'quarantined', 'retired', 'deleted'"
_NEW_STATES = "'validating', 'ready', 'rejected', 'quarantined', 'retired', 'deleted'"
_LIVE_DIGEST = "uq_versions_adapter_id_digest_live"


def upgrade() -> None:
    op.add_column("tenants", sa.Column("quota", sa.JSON, nullable=False, server_default=sa.text("'{}'")))
    _extend_versions()
    _split_aliases()


def downgrade() -> None:
    """Back to one version an alias: the one with the most weight. States that the old release lacks become old ones."""
    op.drop_table("version_labels")
    _join_aliases()
    _shorten_versions()
    with op.batch_alter_table("tenants") as tenants:
        tenants.drop_column("quota")


def _time(name: str, *, nullable: bool = False) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _version_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("base_name", sa.String(200)),
        sa.Column("base_digest", sa.String(64)),
        sa.Column("alpha", sa.Float),
        sa.Column("target_modules", sa.JSON),
        sa.Column("parameters", sa.BigInteger),
        sa.Column("weights_dtype", sa.String(40)),
        sa.Column("peft_version", sa.String(40)),
        sa.Column("source", sa.JSON, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("uploaded_from", sa.String(64)),
        sa.Column("training_run", sa.String(500)),
        sa.Column("card", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("defaults", sa.JSON, nullable=False, server_default=sa.text("'{}'")),
    ]


def _extend_versions() -> None:
    op.drop_index(_LIVE_DIGEST, "versions")
    _check_states(_NEW_STATES, add=_version_columns())
    _index_live_digests("state NOT IN ('deleted', 'rejected')")
    op.create_table(
        "version_labels",
        sa.Column("version_id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("value", sa.String(200), nullable=False),
        sa.PrimaryKeyConstraint("version_id", "name", name="pk_version_labels"),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name="fk_version_labels_version_id_versions"),
    )
    op.create_index("ix_version_labels_name_value", "version_labels", ["name", "value"])


def _shorten_versions() -> None:
    op.drop_index(_LIVE_DIGEST, "versions")
    op.execute("UPDATE versions SET state = 'deleted' WHERE state = 'rejected'")
    op.execute("UPDATE versions SET state = 'quarantined' WHERE state = 'validating'")
    _check_states(_OLD_STATES, drop=[column.name for column in _version_columns()])
    _index_live_digests("state != 'deleted'")


def _check_states(states: str, *, add: Sequence[sa.Column[object]] = (), drop: Sequence[str] = ()) -> None:
    # SQLite copies the table, and its copy would forget that ids are never given twice.
    with op.batch_alter_table("versions", table_kwargs={"sqlite_autoincrement": True}) as versions:
        if op.get_bind().dialect.name == "postgresql":
            versions.drop_constraint("ck_versions_state", type_="check")
        for column in add:
            versions.add_column(column)
        for name in drop:
            versions.drop_column(name)
        versions.create_check_constraint("ck_versions_state", f"state IN ({states})")


def _index_live_digests(condition: str) -> None:
    where = sa.text(condition)
    op.create_index(
        _LIVE_DIGEST, "versions", ["adapter_id", "digest"], unique=True, sqlite_where=where, postgresql_where=where
    )


def _split_aliases() -> None:
    _create_alias_history()
    op.create_table(
        "alias_targets",
        sa.Column("adapter_id", sa.Integer, nullable=False),
        sa.Column("alias", sa.String(63), nullable=False),
        sa.Column("version_id", sa.Integer, nullable=False),
        sa.Column("weight", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("adapter_id", "alias", "version_id", name="pk_alias_targets"),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name="fk_alias_targets_adapter_id_adapters"),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name="fk_alias_targets_version_id_versions"),
    )
    op.create_index("ix_alias_targets_version_id", "alias_targets", ["version_id"])
    op.execute("INSERT INTO alias_targets SELECT adapter_id, name, version_id, 100 FROM aliases")
    single = "'{\"' || CAST(v.number AS VARCHAR) || '\": 100}'"
    as_json = f"CAST({single} AS JSON)" if op.get_bind().dialect.name == "postgresql" else single
    op.execute(
        "INSERT INTO alias_history (adapter_id, alias, at, actor, action, targets) "  # noqa: S608 - literals of this file
        f"SELECT a.adapter_id, a.name, a.updated_at, 'migrate', 'move', {as_json} "
        "FROM aliases a JOIN versions v ON v.id = a.version_id"
    )
    op.drop_index("ix_aliases_version_id", "aliases")
    with op.batch_alter_table("aliases") as aliases:
        aliases.drop_constraint("fk_aliases_version_id_versions", type_="foreignkey")
        aliases.drop_column("version_id")
        aliases.add_column(sa.Column("revision", sa.Integer, nullable=False, server_default=sa.text("0")))
        aliases.add_column(sa.Column("canary_id", sa.Integer))
    op.execute(
        "UPDATE aliases SET revision = (SELECT max(h.id) FROM alias_history h "
        "WHERE h.adapter_id = aliases.adapter_id AND h.alias = aliases.name)"
    )
    with op.batch_alter_table("aliases") as aliases:
        aliases.alter_column("revision", server_default=None)


def _create_alias_history() -> None:
    op.create_table(
        "alias_history",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("adapter_id", sa.Integer, nullable=False),
        sa.Column("alias", sa.String(63), nullable=False),
        _time("at"),
        sa.Column("actor", sa.String(16), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("targets", sa.JSON),
        sa.Column("reason", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_alias_history"),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name="fk_alias_history_adapter_id_adapters"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_alias_history_adapter_id_alias", "alias_history", ["adapter_id", "alias"])


def _join_aliases() -> None:
    with op.batch_alter_table("aliases") as aliases:
        aliases.add_column(sa.Column("version_id", sa.Integer))
        aliases.drop_column("canary_id")
        aliases.drop_column("revision")
    op.execute(
        "UPDATE aliases SET version_id = (SELECT t.version_id FROM alias_targets t "
        "WHERE t.adapter_id = aliases.adapter_id AND t.alias = aliases.name "
        "ORDER BY t.weight DESC, t.version_id LIMIT 1)"
    )
    with op.batch_alter_table("aliases") as aliases:
        aliases.alter_column("version_id", existing_type=sa.Integer, nullable=False)
        aliases.create_foreign_key("fk_aliases_version_id_versions", "versions", ["version_id"], ["id"])
    op.create_index("ix_aliases_version_id", "aliases", ["version_id"])
    op.drop_table("alias_targets")
    op.drop_table("alias_history")
