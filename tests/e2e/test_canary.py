"""Automatic rollback of bad canaries on the real engine.

One planted version gives empty answers, the other answers NaN. Both pass every check of an upload. As canaries under
steady traffic both are rolled back automatically.
"""

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.demo.train import Demo
from tests.support.canary_traffic import Seen, breach_of, steady_traffic
from tests.support.planted_adapters import mute_adapter, nan_adapter
from tests.support.server import Server, until

pytestmark = pytest.mark.slow

#: Seconds from the breach to the alias move and to the last request of the bad version.
BACK_WITHIN_S = 5.0

PROMPT = "[INST] What is coffee? [/INST]"
BODY = {"model": "planted:stable", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
LESSONS = [PROMPT, *(f"[INST] {text} [/INST]" for text in ("Hello", "Can you explain sugar?", "Who are you?"))]


def plant(kind: str, base: Path, directory: Path) -> Path:
    if kind == "mute":
        return mute_adapter(base, directory, LESSONS)
    return nan_adapter(base, directory, PROMPT)


@pytest.fixture(params=["mute", "nan"])
def tenant(request: pytest.FixtureRequest, server: Server, trained_demo: Demo, tmp_path: Path) -> Iterator[str]:
    """Tenant whose adapter ``planted`` has a good version 1, the target of ``stable``, and a bad version 2."""
    slug = f"canary-{request.param}"
    with server.client(server.admin_key) as admin:
        assert admin.post("/admin/tenants", json={"slug": slug}).status_code == 201
        folders = (trained_demo.adapters["pricing"], plant(request.param, trained_demo.base, tmp_path / "bad"))
        for folder in folders:
            published = server.publish(slug, "planted", folder)
            assert published.status_code == 201, published.text
            assert published.json()["state"] == "ready"
        path = f"/admin/tenants/{slug}/adapters/planted"
        assert admin.put(f"{path}/aliases/stable", json={"version": 1}).status_code == 201
        yield slug
        assert admin.delete(path, params={"force": "true"}).is_success


def test_a_planted_bad_canary_is_rolled_back_by_itself(server: Server, tenant: str) -> None:
    key = server.tenant(tenant)
    alias = f"/admin/tenants/{tenant}/adapters/planted/aliases/stable"
    with (
        server.client(server.admin_key) as admin,
        steady_traffic(lambda: server.client(key), BODY, callers=6) as seen,
    ):
        until(lambda: len(seen) > 30, 60)
        started = time.time()
        canary: dict[str, Any] = {"version": 2, "policy": {"steps": [{"weight": 5, "seconds": 3600}]}}
        assert admin.put(f"{alias}/canary", json=canary).status_code == 201
        until(lambda: admin.get(alias).json()["weights"] == {"1": 100}, 60)
        back, known = time.time(), len(seen)
        until(lambda: len(seen) > known + 60, 60)
        shown = admin.get(alias).json()["canary"]
    check_times(seen, started, back)
    assert (shown["state"], shown["details"]["code"]) == ("rolled_back", "empty_rate"), shown
    assert "empty or non-finite" in shown["reason"]
    candidate = shown["details"]["candidate"]
    assert candidate["empties"] == candidate["requests"] >= 3
    good = {(each.status, each.text) for each in seen if each.version == "planted@1"}
    assert len(good) == 1, "the bad version's neighbours answer as ever"
    assert next(iter(good))[1]
    check_history(server, alias, shown)


def check_times(seen: list[Seen], started: float, back: float) -> None:
    assert {each.status for each in seen} == {200}
    breach = breach_of(seen, "planted@2", started)
    last = max(each.began for each in seen if each.version == "planted@2")
    figures = {"breach to alias moved, s": back - breach, "breach to its last request, s": last - breach}
    print(json.dumps(figures))  # noqa: T201 - the figure that this test is about
    assert max(figures.values()) < BACK_WITHIN_S


def check_history(server: Server, alias: str, shown: dict[str, Any]) -> None:
    """Check that the alias's history gives the reason and the audit trail has the figures."""
    with server.client(server.admin_key) as admin:
        newest = admin.get(f"{alias}/history").json()["data"][0]
    assert (newest["actor"], newest["action"], newest["weights"]) == ("canary", "canary-rollback", {"1": 100})
    assert newest["reason"] == shown["reason"]
    row = audit_row(server, "canary.rollback", alias)
    assert {name: row[name] for name in shown["details"]} == shown["details"]


def audit_row(server: Server, action: str, alias: str) -> dict[str, Any]:
    """Return the state after the change from the newest audit row of an action, read from the database itself."""
    statement = "SELECT after FROM audit WHERE action = ? AND tenant = ? ORDER BY id DESC LIMIT 1"
    with contextlib.closing(sqlite3.connect(server.home / "tenora.db")) as registry:
        found = registry.execute(statement, (action, alias.split("/")[3])).fetchone()
    after: dict[str, Any] = json.loads(found[0])
    return after
