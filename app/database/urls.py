"""Database URLs that the registry supports."""

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from app.settings import Settings

SQLITE_BUSY_MS = 10_000
_ALLOWED = "sqlite+aiosqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"


def database_url(settings: Settings) -> str:
    """The URL that the settings mean: the one given, or a file in HOME."""
    return settings.database_url or f"sqlite+aiosqlite:///{settings.home.resolve() / 'tenora.db'}"


def parse_url(url: str) -> URL:
    """Check a database URL.

    Raises:
        ValueError: another database or driver, or SQLite without a file.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(f"database_url: found no URL, allowed {_ALLOWED}") from None
    in_file = parsed.database not in (None, "", ":memory:")
    if parsed.drivername == "postgresql+psycopg" or (parsed.drivername == "sqlite+aiosqlite" and in_file):
        return parsed
    raise ValueError(f"database_url: found {parsed.render_as_string(hide_password=True)!r}, allowed {_ALLOWED}")
