"""PostgreSQL role of an engine replica: the privileges on the registry that a replica needs, and no other.

A replica reads versions and where they are placed. It writes its node, its confirmations of deletions, the quarantine
of a version that failed to load, and the audit rows of these changes. It reads no key, usage, price, account, file,
batch or stored answer, and of a tenant not the salt of its prefix cache.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from app.database.migrate import migration_connection
from app.database.tables import metadata
from app.database.urls import parse_url

_NAME = re.compile("[a-z_][a-z0-9_]{0,62}", re.ASCII)
_MISSING_ROLE = "42704"


@dataclass(frozen=True, slots=True)
class Privileges:
    """Privileges on one table. A name of a column in ``insert`` or ``update`` allows to write this column.

    Attributes:
        read: columns that may be read; None for all.
    """

    read: tuple[str, ...] | None = None
    insert: tuple[str, ...] = ()
    update: tuple[str, ...] = ()


_REPORT = ("name", "started_at", "seen_at", "clock_offset_s", "role", "base_digest", "slots", "snapshot", "snapshot_at")

GRANTED: Mapping[str, Privileges] = {
    "adapters": Privileges(("id", "tenant_id", "slug", "deleted_at", "limits")),
    "alias_history": Privileges(("id", "adapter_id", "alias")),
    "alias_targets": Privileges(),
    "aliases": Privileges(("adapter_id", "name", "revision", "canary_id")),
    "audit": Privileges(("id",), insert=("at", "actor", "action", "tenant", "subject", "before", "after")),
    "deletion_nodes": Privileges(
        insert=("deletion_id", "node", "engine_gone_at", "disk_gone_at"), update=("engine_gone_at", "disk_gone_at")
    ),
    # A node marks versions whose bytes another version shares.
    "deletions": Privileges(update=("versions",)),
    "installation": Privileges(),
    "nodes": Privileges(insert=("id", *_REPORT), update=_REPORT),
    "pins": Privileges(),
    "shares": Privileges(("adapter_id", "tenant_id")),
    "tenants": Privileges(("id", "slug", "name", "disabled", "created_at", "deleted_at", "quota", "weight", "limits")),
    "versions": Privileges(
        (
            *("id", "adapter_id", "number", "state", "state_reason", "digest", "normal_digest", "lora_head"),
            *("config_digest", "weights_digest", "config_bytes", "weights_bytes"),
            *("base_name", "base_digest", "defaults"),
        ),
        update=("state", "state_reason"),
    ),
}

#: Tables of which a replica reads and writes nothing. A new table belongs into one of the two.
WITHHELD = frozenset(
    {
        *("audit_anchors", "audit_seals", "batch_chunks", "batch_results", "batches", "canaries", "canary_figures"),
        *("file_parts", "file_uploads", "files", "idempotency", "keys", "limit_accounts", "limit_grants"),
        *("limit_reclaimed", "prices", "sessions", "upload_refusals", "uploads"),
        *("usage", "usage_hours", "usage_latencies", "version_labels"),
    }
)

#: Columns that are withheld, of tables of which a replica reads others. A new column belongs into one of the two.
WITHHELD_COLUMNS: Mapping[str, frozenset[str]] = {
    "adapters": frozenset({"created_at"}),
    "alias_history": frozenset({"at", "actor", "action", "targets", "reason"}),
    "aliases": frozenset({"updated_at"}),
    "audit": frozenset({"at", "actor", "action", "tenant", "subject", "before", "after"}),
    "shares": frozenset({"recipient", "created_at", "created_by"}),
    "tenants": frozenset({"salt"}),
    "versions": frozenset(
        {
            *("uploaded_config_digest", "uploaded_config_bytes", "uploaded_weights_digest", "uploaded_weights_bytes"),
            *("warnings", "rank", "manifest", "created_at", "created_by", "alpha", "target_modules", "parameters"),
            *("weights_dtype", "peft_version", "source", "uploaded_from", "training_run", "card"),
        }
    ),
}


def grant_statements(role: str) -> list[str]:
    """Return the statements that give a role exactly these privileges. They can be repeated.

    Raises:
        ValueError: the name is not a plain one.
    """
    if not _NAME.fullmatch(role) or role == "public":
        raise ValueError(f"{role[:80]!r} is not a plain name of a role: lower-case letters, digits and underscores.")
    role = f'"{role}"'
    statements = [
        f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}",
        f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM {role}",
        # Privileges on columns outlive those on their table.
        *(f"REVOKE ALL ({_columns(table)}) ON {table} FROM {role}" for table in sorted(metadata.tables)),
        f"GRANT USAGE ON SCHEMA public TO {role}",
        f"GRANT SELECT ON alembic_version TO {role}",
        f"GRANT USAGE ON SEQUENCE audit_id_seq TO {role}",
    ]
    for table, privileges in sorted(GRANTED.items()):
        read = "" if privileges.read is None else f" ({', '.join(privileges.read)})"
        statements.append(f"GRANT SELECT{read} ON {table} TO {role}")
        for verb, columns in (("INSERT", privileges.insert), ("UPDATE", privileges.update)):
            if columns:
                statements.append(f"GRANT {verb} ({', '.join(columns)}) ON {table} TO {role}")
    return statements


def grant(url: str, role: str) -> None:
    """Run :func:`grant_statements` in one transaction; blocks.

    Raises:
        ValueError: the database is not PostgreSQL, or it has no such role.
        RegistryUnavailable: the database does not answer.
    """
    if parse_url(url).get_backend_name() != "postgresql":
        raise ValueError("TENORA_DATABASE_URL is not PostgreSQL. Only PostgreSQL has roles.")
    statements = grant_statements(role)
    try:
        with migration_connection(url) as connection:
            for statement in statements:
                connection.execute(text(statement))
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != _MISSING_ROLE:
            raise
        raise ValueError(
            f"The role {role} does not exist. Create it in psql: CREATE ROLE {role} LOGIN PASSWORD '...'."
        ) from None


def _columns(table: str) -> str:
    return ", ".join(f'"{column.name}"' for column in metadata.tables[table].columns)
