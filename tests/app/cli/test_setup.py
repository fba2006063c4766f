"""init and migrate on a real SQLite file."""

import asyncio
import json
import sqlite3
import stat

import pytest

from app.cli.registry import works_for_platform
from app.cli.serve import _listen, _url
from app.settings import Settings


def test_init_makes_home_pepper_schema_and_one_key(alone, tmp_path):
    home = tmp_path / "home"
    key = json.loads(alone("init", "--json").stdout)["key"]
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert (home / "secrets" / "pepper").exists()
    settings = Settings(home=home)
    assert asyncio.run(works_for_platform(settings, key))
    assert not asyncio.run(works_for_platform(settings, key[:-1] + ("a" if key[-1] != "a" else "b")))
    assert "--force-new-key" in alone("init", exit_code=1).stderr
    second = alone("init", "--force-new-key")
    assert asyncio.run(works_for_platform(settings, second.stdout.strip()))
    with sqlite3.connect(home / "tenora.db") as connection:
        assert connection.execute("SELECT actor, action FROM audit").fetchall() == [("cli", "key.create")] * 2
    connection.close()


def test_init_issues_a_key_again_once_all_are_revoked(alone, tmp_path):
    alone("init")
    with sqlite3.connect(tmp_path / "home" / "tenora.db") as connection:
        connection.execute("UPDATE keys SET revoked_at = '2026-01-01 00:00:00.000000'")
    connection.close()
    assert alone("init").stdout.startswith("tnr_")


def test_migrate_and_check(alone):
    alone("migrate", "--check", exit_code=1)
    assert "the schema is at" in alone("migrate").stderr
    alone("migrate", "--check")


def test_a_database_that_is_none(alone):
    result = alone("migrate", exit_code=1, TENORA_DATABASE_URL="mysql://user:hunter2@host/db")
    assert "postgresql+psycopg" in result.stderr
    assert "hunter2" not in result.stderr


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]")],  # noqa: S104 - the address is the point
)
def test_the_url_of_a_port_of_the_systems_choice(host, shown):
    settings = Settings(host=host, port=0)
    with _listen(settings) as listener:
        assert _url(settings, listener) == f"http://{shown}:{listener.getsockname()[1]}"


def test_the_audit_trail_is_checked_and_printed_without_a_server(alone, tmp_path):
    alone("init")
    verdict = alone.json("audit", "verify")
    assert (verdict["sealed"], verdict["fresh"], verdict["problems"]) == (0, 1, [])
    (line,) = alone("audit", "export").stdout.splitlines()
    assert json.loads(line)["action"] == "key.create"
    home = tmp_path / "home"
    (home / "audit-seal").write_text(json.dumps({"row_id": 9, "mac": "0" * 64}))
    assert "this server saw row 9 sealed" in alone("audit", "verify", exit_code=1).stderr
