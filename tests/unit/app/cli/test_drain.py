"""``tenora server drain`` on a real journal and SQLite."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from app.domain.usage import UsageEntry
from app.services.usage.journal import Journal
from app.support.home import exclusive
from tests.support.cli import Tenora
from tests.support.journal_records import numbered


@pytest.fixture
def home(alone: Tenora, tmp_path: Path) -> Path:
    """HOME of a server that ended before it could ship its records."""
    alone("init")
    home = tmp_path / "home"
    asyncio.run(write(home / "usage", 3))
    return home


async def write(folder: Path, records: int) -> None:
    journal = Journal(folder)
    journal.open()
    for number in range(records):
        await journal.add(UsageEntry(numbered(number)))
    await journal.close()


def recorded(database: Path) -> int:
    with sqlite3.connect(database) as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM usage").fetchall()
    connection.close()
    return int(count)


def test_drain_ships_all_records_once(alone: Tenora, home: Path) -> None:
    size = sum(path.stat().st_size for path in (home / "usage").iterdir())
    report = alone.json("server", "drain")
    assert report == {"shipped_bytes": size, "damaged": []}
    assert recorded(home / "tenora.db") == 3
    assert list((home / "usage").iterdir()) == []
    assert "0 bytes were shipped" in alone("server", "drain").stderr
    assert recorded(home / "tenora.db") == 3


def test_drain_names_what_exists_nowhere_else(alone: Tenora, home: Path) -> None:
    said = alone("server", "drain").stderr
    assert f"{home}/secrets/pepper remains." in said
    assert f"{home}/tenora.db remains." in said


def test_drain_leaves_a_running_server_alone(alone: Tenora, home: Path) -> None:
    with exclusive(home):
        (line,) = alone("server", "drain", exit_code=1).stderr.splitlines()
    assert "is in use by pid" in line
    assert recorded(home / "tenora.db") == 0


def test_drain_keeps_records_without_a_database(alone: Tenora, home: Path) -> None:
    before = [path.read_bytes() for path in (home / "usage").iterdir()]
    url = "postgresql://me@nowhere.invalid/tenora"
    assert "does not answer" in alone("server", "drain", exit_code=1, TENORA_DATABASE_URL=url).stderr
    assert [path.read_bytes() for path in (home / "usage").iterdir()] == before


def test_drain_tells_of_records_it_cannot_read(alone: Tenora, home: Path) -> None:
    (path,) = (home / "usage").iterdir()
    path.write_bytes(b"00000000 {}\n" + path.read_bytes())
    assert f"{path.stem}.damaged" in alone("server", "drain", exit_code=1).stderr
    assert recorded(home / "tenora.db") == 3


def test_drain_makes_no_home(alone: Tenora, tmp_path: Path) -> None:
    assert "There is no folder" in alone("server", "drain", exit_code=1).stderr
    assert not (tmp_path / "home").exists()
