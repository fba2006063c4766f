"""Aliases on both databases: moves, splits, rollbacks, history, and concurrent moves of one alias."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from adapters.identity import ModelName
from app.database.tables import audit
from app.domain.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed, WrongBase
from app.services.common.preconditions import Precondition
from app.services.rollout.aliases import AliasService
from tests.support.registry import BASE_DIGEST, Node

pytest_plugins = ("tests.support.registry_fixtures",)

ANY = Precondition()


def service(node: Node, base_digest: str = BASE_DIGEST) -> AliasService:
    return AliasService(node.database, base_digest=base_digest, clock=node.clock)


async def three_versions(node: Node) -> None:
    """Tenant ``pricing``, whose adapter ``prices`` has versions 1, 2 and 3."""
    await node.tenants.create("pricing", actor="cli")
    for content in ("a", "b", "c"):
        await node.publish("pricing", "prices", content)


async def put(node: Node, alias: str, weights: dict[int, int], condition: Precondition = ANY) -> int:
    report, _ = await service(node).set("pricing", "prices", alias, weights, precondition=condition, actor="key")
    return report.alias.revision


async def roll_back(node: Node, alias: str) -> dict[int, int]:
    report = await service(node).roll_back("pricing", "prices", alias, precondition=ANY, actor="key")
    return dict(report.alias.targets)


async def audited(node: Node) -> list[Any]:
    async with node.database.read() as connection:
        rows = await connection.execute(select(audit).where(audit.c.action.like("alias.%")).order_by(audit.c.id))
        return [(row.actor, row.action, row.tenant, row.subject, row.before, row.after) for row in rows]


async def test_an_alias_from_its_first_target_to_its_end(node: Node) -> None:
    await three_versions(node)
    report, created = await service(node).set("pricing", "prices", "stable", {1: 100}, precondition=ANY, actor="key")
    assert (created, dict(report.alias.targets), report.canary) == (True, {1: 100}, None)
    await put(node, "stable", {3: 5, 1: 95})
    assert list((await service(node).get("pricing", "prices", "stable")).alias.targets.items()) == [(3, 5), (1, 95)]
    listed = await service(node).list("pricing", "prices")
    assert [(alias.name, dict(alias.targets)) for alias in listed.data] == [
        ("default", {3: 100}),
        ("stable", {1: 95, 3: 5}),
    ]
    await service(node).delete("pricing", "prices", "stable", precondition=ANY, actor="key")
    with pytest.raises(NotFound, match="no alias 'stable'"):
        await service(node).get("pricing", "prices", "stable")
    history = await service(node).history("pricing", "prices", "stable")
    assert [(change.action, change.targets) for change in history.data] == [
        ("remove", None),
        ("split", {1: 95, 3: 5}),
        ("move", {1: 100}),
    ]
    assert await audited(node) == [
        ("key", "alias.move", "pricing", "prices:stable", None, {"targets": {"1": 100}}),
        ("key", "alias.split", "pricing", "prices:stable", {"targets": {"1": 100}}, {"targets": {"1": 95, "3": 5}}),
        ("key", "alias.delete", "pricing", "prices:stable", {"targets": {"1": 95, "3": 5}}, None),
    ]


async def test_lists_and_histories_go_on_where_the_page_before_ended(node: Node) -> None:
    await three_versions(node)
    for name in ("a", "b", "c"):
        await put(node, name, {1: 100})
    first = await service(node).list("pricing", "prices", limit=2)
    second = await service(node).list("pricing", "prices", limit=2, cursor=first.next_cursor)
    assert [alias.name for alias in (*first.data, *second.data)] == ["a", "b", "c", "default"]
    newest = await service(node).history("pricing", "prices", "default", limit=2)
    oldest = await service(node).history("pricing", "prices", "default", limit=2, cursor=newest.next_cursor)
    assert [change.targets for change in (*newest.data, *oldest.data)] == [{3: 100}, {2: 100}, {1: 100}]
    assert oldest.next_cursor is None
    with pytest.raises(NotFound):
        await service(node).history("pricing", "prices", "never\0was")


async def test_what_points_there_already_is_no_change(node: Node) -> None:
    await three_versions(node)
    revision = await put(node, "stable", {1: 95, 2: 5})
    assert await put(node, "stable", {2: 5, 1: 95}) == revision
    assert len((await service(node).history("pricing", "prices", "stable")).data) == 1


async def test_a_second_rollback_undoes_the_first(node: Node) -> None:
    await three_versions(node)
    await put(node, "stable", {1: 100})
    await put(node, "stable", {1: 95, 2: 5})
    await put(node, "stable", {1: 19, 2: 1})
    await put(node, "stable", {2: 100})
    assert await roll_back(node, "stable") == {1: 19, 2: 1}
    assert await roll_back(node, "stable") == {2: 100}
    assert (await service(node).history("pricing", "prices", "stable", limit=1)).data[0].action == "rollback"


async def test_the_same_split_in_other_numbers_is_not_what_was_before(node: Node) -> None:
    await three_versions(node)
    await put(node, "stable", {1: 100})
    await put(node, "stable", {1: 95, 2: 5})
    await put(node, "stable", {1: 19, 2: 1})
    assert await roll_back(node, "stable") == {1: 100}


async def test_a_rollback_reaches_past_a_long_history_of_equals(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.services.rollout.aliases._CHUNK", 3)
    await three_versions(node)
    await put(node, "stable", {3: 100})
    for weight in range(1, 10):
        await put(node, "stable", {1: weight, 2: weight})
    assert await roll_back(node, "stable") == {3: 100}


async def test_no_rollback_before_the_first_or_to_unready(node: Node) -> None:
    await three_versions(node)
    await put(node, "stable", {1: 100})
    with pytest.raises(Conflict, match="has no earlier target"):
        await roll_back(node, "stable")
    await put(node, "stable", {2: 100})
    first = await node.adapters.get_version("pricing", "prices", 1)
    assert await node.adapters.quarantine(first.key.version_id, "does not load")
    with pytest.raises(Conflict, match="prices@1 is quarantined, but must be ready"):
        await roll_back(node, "stable")
    await service(node).delete("pricing", "prices", "stable", precondition=ANY, actor="key")
    await put(node, "stable", {3: 100})
    with pytest.raises(Conflict, match="has no earlier target"):
        await roll_back(node, "stable")


async def test_default_stays_as_long_as_a_version_is_ready(node: Node) -> None:
    await three_versions(node)
    with pytest.raises(Conflict, match="cannot be deleted while a version is ready"):
        await service(node).delete("pricing", "prices", "default", precondition=ANY, actor="key")
    for number in (1, 2, 3):
        version = await node.adapters.get_version("pricing", "prices", number)
        await node.adapters.quarantine(version.key.version_id, "does not load")
    await service(node).delete("pricing", "prices", "default", precondition=ANY, actor="key")
    assert (await service(node).list("pricing", "prices")).data == ()


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        ({}, InvalidRequest),
        ({1: 0}, InvalidRequest),
        ({1: 10_001}, InvalidRequest),
        (dict.fromkeys(range(1, 12), 1), InvalidRequest),
        ({4: 100}, NotFound),
        ({1: 50, 2**40: 50}, NotFound),
    ],
)
async def test_what_an_alias_cannot_point_at(node: Node, weights: dict[int, int], error: type[Exception]) -> None:
    await three_versions(node)
    with pytest.raises(error):
        await put(node, "stable", weights)
    assert (await service(node).list("pricing", "prices")).data[0].name == "default"


async def test_versions_of_another_base_are_refused(node: Node) -> None:
    await three_versions(node)
    with pytest.raises(WrongBase, match="validated against the base 'llama'"):
        await service(node, "c" * 64).set("pricing", "prices", "x", {1: 1}, precondition=ANY, actor="key")


async def test_an_adapter_has_only_so_many_aliases(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.services.rollout.alias_lookups.MAX_ALIASES", 3)
    await three_versions(node)
    for number in range(2):
        await put(node, f"a{number}", {1: 100})
    with pytest.raises(Conflict, match="has 3 aliases"):
        await put(node, "one-more", {1: 100})
    await put(node, "a0", {2: 100})


async def test_another_tenants_adapter_is_not_there(node: Node) -> None:
    await three_versions(node)
    await node.tenants.create("other", actor="cli")
    calls = (
        service(node).get("other", "prices", "default"),
        service(node).list("other", "prices"),
        service(node).history("other", "prices", "default"),
        service(node).set("other", "prices", "default", {1: 100}, precondition=ANY, actor="key"),
        service(node).roll_back("other", "prices", "default", precondition=ANY, actor="key"),
        service(node).delete("other", "prices", "default", precondition=ANY, actor="key"),
    )
    for call in calls:
        with pytest.raises(NotFound, match="no adapter 'prices'"):
            await call


async def test_one_of_many_moves_with_the_same_etag_wins(node: Node, other_node: Node) -> None:
    await three_versions(node)
    revision = await put(node, "stable", {1: 100})
    condition = Precondition(if_match=frozenset({str(revision)}))
    moved = await asyncio.gather(
        *(put(place, "stable", {2: weight}, condition) for weight, place in enumerate((node, other_node) * 4, 1)),
        return_exceptions=True,
    )
    winners = [result for result in moved if isinstance(result, int)]
    assert len(winners) == 1
    assert all(isinstance(result, int | PreconditionFailed) for result in moved)
    assert (await service(other_node).get("pricing", "prices", "stable")).alias.revision == winners[0]


async def test_of_many_who_create_one_alias_at_once_one_does(node: Node, other_node: Node) -> None:
    await three_versions(node)
    condition = Precondition(must_be_new=True)
    made = await asyncio.gather(
        *(put(place, "stable", {1: 100}, condition) for place in (node, other_node) * 3), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in made) == ["PreconditionFailed"] * 5 + ["int"]


async def test_a_move_through_one_node_is_what_the_other_resolves_next(node: Node, other_node: Node) -> None:
    await three_versions(node)
    tenant = await node.tenants.get("pricing")
    for number in (1, 3, 2):
        revision = await put(node, "stable", {number: 100})
        other_node.await_others()
        resolved = await other_node.adapters.resolve(tenant.id, ModelName("prices", "stable"))
        assert (resolved.number, resolved.revision, resolved.canary_id) == (number, revision, None)
