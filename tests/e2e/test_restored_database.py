"""Database restored under a running server: row ids are reused for other bytes."""

import sqlite3
from pathlib import Path

import httpx
import pytest

from app.demo.train import Demo
from tests.support.server import Server, running
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow

BODY = {"prompt": "[INST] Can you explain sugar? [/INST]", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def copy(source: Path, target: Path) -> None:
    """Copy the database with SQLite's backup API, as a backup or as its restoration."""
    with sqlite3.connect(source) as read, sqlite3.connect(target) as written:
        read.backup(written)


def answer(client: httpx.Client, model: str) -> str:
    done = client.post("/v1/completions", json=BODY | {"model": model})
    assert done.status_code == 200, done.text
    return str(done.json()["choices"][0]["text"])


def version_id(database: Path, adapter: str) -> int:
    statement = "SELECT v.id FROM versions v JOIN adapters a ON a.id = v.adapter_id WHERE a.slug = ?"
    with sqlite3.connect(database) as connection:
        [(found,)] = connection.execute(statement, (adapter,)).fetchall()
    return int(found)


@pytest.fixture
def server(trained_demo: Demo, tmp_path: Path):
    with running(tmp_path, trained_demo.base, **SLOTS) as server:
        yield server


def test_an_id_that_comes_again_answers_with_its_own_bytes(server: Server, trained_demo: Demo, tmp_path: Path) -> None:
    database, kept = tmp_path / "tenora.db", tmp_path / "backup.db"
    one, other = trained_demo.adapters["pricing"], trained_demo.adapters["supply-chain"]
    key = server.tenant("unit")
    with server.client(key) as client:
        copy(database, kept)
        # Reference answers of each adapter under an id that no other adapter ever used.
        assert server.publish("unit", "first", one).status_code == 201
        assert server.publish("unit", "second", other).status_code == 201
        answers = {folder: answer(client, name) for folder, name in ((one, "first"), (other, "second"))}
        assert answers[one] != answers[other]
        before = version_id(database, "first")
        # The id repeatedly changes its adapter, in a slot, in host memory and on the disk.
        for number, folder in enumerate((other, one, other)):
            copy(kept, database)
            assert server.publish("unit", f"again-{number}", folder).status_code == 201
            assert version_id(database, f"again-{number}") == before
            assert answer(client, f"again-{number}") == answers[folder]
