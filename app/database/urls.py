"""Database URLs that the registry supports."""

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from app.settings import Settings

SQLITE_BUSY_MS = 10_000
_ALLOWED = "Use sqlite+aiosqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE."
_POSTGRESQL = frozenset({"postgresql", "postgres", "postgresql+psycopg"})
_POSTGRESQL_PORT = 5432


def database_url(settings: Settings) -> str:
    """Return the configured URL, by default a file in HOME."""
    return settings.database_url or f"sqlite+aiosqlite:///{settings.home.resolve() / 'tenora.db'}"


def parse_url(url: str) -> URL:
    """Validate a database URL; the driver is optional for PostgreSQL.

    Raises:
        ValueError: unsupported database or driver, or SQLite without a file.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(f"TENORA_DATABASE_URL is not a URL. {_ALLOWED}") from None
    if parsed.drivername in _POSTGRESQL:
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername == "sqlite+aiosqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed
    shown = parsed.render_as_string(hide_password=True)
    raise ValueError(f"TENORA_DATABASE_URL is {shown!r}, which the registry does not support. {_ALLOWED}")


def place(url: URL) -> str:
    """Location of the database for an operator, without the password: host and port, a socket, or a file."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    # libpq parameters in the query may name hosts and ports too, several of each.
    hosts, port = url.host or url.query.get("host") or "localhost", url.port or url.query.get("port")
    host = hosts if isinstance(hosts, str) else ",".join(hosts)
    return f"{host}:{port or _POSTGRESQL_PORT}"
