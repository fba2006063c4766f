"""init and migrate on a real SQLite file."""

import asyncio
import json
import os
import sqlite3
import stat

import pytest

from app.cli.registry import works_for_platform
from app.cli.serve import _listen, _url
from app.settings import Settings
from app.support.home import exclusive


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
    assert "The schema is at revision" in alone("migrate").stderr
    alone("migrate", "--check")


def test_a_database_that_is_none(alone):
    result = alone("migrate", exit_code=1, TENORA_DATABASE_URL="mysql://user:hunter2@host/db")
    assert "Use sqlite+aiosqlite:///FILE or postgresql://USER" in result.stderr
    assert "hunter2" not in result.stderr


@pytest.mark.parametrize(
    ("host", "shown"),
    # The wildcard address is the point of the test.
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]")],  # noqa: S104
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


def test_a_home_takes_one_server_and_other_commands(alone, tmp_path):
    home = tmp_path / "home"
    alone("init")
    with exclusive(home):
        for arguments in (["serve", "--port", "0"], ["serve", "--demo", "--port", "0"]):
            (line,) = alone(*arguments, exit_code=1).stderr.splitlines()
            assert f"is in use by pid {os.getpid()}" in line
        alone("migrate", "--check")
        alone("audit", "verify")
        alone("audit", "export")
        alone("gc", "--dry-run")
        alone("init", "--force-new-key")


def test_a_wrong_pepper_is_reported_before_serving(alone, tmp_path):
    alone("init")
    pepper = tmp_path / "home/secrets/pepper"
    kept = pepper.read_text()
    for damage in (lambda: pepper.write_text("x" * 64), pepper.unlink):
        damage()
        for arguments in (["serve", "--port", "0"], ["audit", "verify"], ["init", "--force-new-key"]):
            (line,) = alone(*arguments, exit_code=1).stderr.splitlines()
            assert "secrets/pepper" in line
            assert "--new-pepper" in line
    assert not pepper.exists(), "no other pepper is made"
    pepper.write_text(kept)
    alone("audit", "verify")


def test_a_lost_pepper_is_replaced_when_that_is_asked_for(alone, tmp_path):
    first = alone("init").stdout.strip()
    (tmp_path / "home/secrets/pepper").unlink()
    second = alone("init", "--new-pepper").stdout.strip()
    settings = Settings(home=tmp_path / "home")
    assert [asyncio.run(works_for_platform(settings, key)) for key in (first, second)] == [False, True]
    alone("init", "--force-new-key")


def test_a_schema_of_a_newer_release_is_one_sentence(alone, tmp_path):
    alone("init")
    with sqlite3.connect(tmp_path / "home" / "tenora.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9001'")
        connection.execute("UPDATE installation SET value = '9001' WHERE name = 'oldest_revision'")
    connection.close()
    for arguments in (["migrate"], ["migrate", "--check"], ["init"], ["serve", "--port", "0"], ["audit", "verify"]):
        (line,) = alone(*arguments, exit_code=1).stderr.splitlines()
        assert "is at revision 9001, which this release cannot use. Start the newer release" in line


def test_a_schema_that_a_newer_release_only_added_to_is_used(alone, tmp_path):
    alone("init")
    with sqlite3.connect(tmp_path / "home" / "tenora.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9001'")
    connection.close()
    assert "The schema is at revision 9001." in alone("migrate").stderr
    assert "The schema is at revision 9001." in alone("migrate", "--check").stderr
    alone("init", "--force-new-key")
    alone("audit", "verify")
