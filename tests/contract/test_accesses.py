"""Audit rows for events without a change, such as refusals: deduplicated, and none lost."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select

from app.database.tables import audit
from app.domain.access import Caller, Scope
from app.domain.errors import RegistryUnavailable
from app.services.access.access_log import AccessLog
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)

PLATFORM = Caller("platform-key", None, None, frozenset({Scope.ADMIN}), "")
RETAIL = Caller("retail-key", 7, "retail", frozenset({Scope.INFERENCE}), "")


@pytest.fixture
def trail(node: Node) -> AccessLog:
    return AccessLog(node.database, clock=node.clock)


async def rows(node: Node) -> Sequence[Any]:
    async with node.database.read() as connection:
        found = await connection.execute(select(audit).where(audit.c.action.in_(("key.use", "key.refuse"))))
        return found.all()


async def test_a_row_for_each_key_and_kind_with_how_often_and_what(node: Node, trail: AccessLog) -> None:
    for _ in range(3):
        trail.used(PLATFORM, "GET /admin/tenants")
    trail.used(PLATFORM, "POST /admin/tenants")
    trail.refused(RETAIL, "There is no model 'mining/gold'")
    await trail.write()
    used, refused = sorted(await rows(node), key=lambda row: row.action, reverse=True)
    assert (used.actor, used.action, used.tenant, used.subject) == (
        "platform-key",
        "key.use",
        None,
        "GET /admin/tenants",
    )
    assert used.after == {"count": 4, "of": {"GET /admin/tenants": 3, "POST /admin/tenants": 1}}
    assert (refused.actor, refused.action, refused.tenant) == ("retail-key", "key.refuse", "retail")
    await trail.write()
    assert len(await rows(node)) == 2


async def test_whoever_tries_a_million_names_fills_one_row(node: Node, trail: AccessLog) -> None:
    for number in range(100_000):
        trail.refused(RETAIL, f"There is no model 'mining/{number}'" + "x" * 1000)
    await trail.write()
    (row,) = await rows(node)
    assert row.after["count"] == 100_000
    assert len(row.after["of"]) == 20
    assert max(map(len, row.after["of"])) == 200


async def test_what_could_not_be_written_is_written_later(
    node: Node, trail: AccessLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        trail.refused(RETAIL, f"name {number}")

    def gone() -> None:
        # The same refusal happens again in the meantime.
        trail.refused(RETAIL, "name 0")
        trail.refused(RETAIL, "name 29")
        trail.used(PLATFORM, "GET /admin/keys")
        raise RegistryUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(trail, "_database", type("Gone", (), {"write": staticmethod(gone)}))
        with pytest.raises(RegistryUnavailable):
            await trail.write()
    await trail.write()
    refused, used = sorted(await rows(node), key=lambda row: row.action)
    assert (refused.after["count"], refused.after["of"]["name 0"], len(refused.after["of"])) == (32, 2, 20)
    assert used.after["count"] == 1
