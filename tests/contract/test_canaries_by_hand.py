"""Canaries on both databases: manual actions, allowed and refused."""

import asyncio
from typing import Any

import pytest

from app.database.canaries import Counts
from app.domain.canaries import CanaryState
from app.domain.canary_policy import Policy, Step
from app.domain.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed
from app.services.common.preconditions import Precondition
from app.services.rollout.outcomes import TrialWindow
from tests.support.canaries import ANY, POLICY, Place, aliases, audited, canaries, report, start, weights
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures", "tests.support.canary_fixtures")


async def test_somebody_who_moves_the_alias_ends_its_canary(place: Place) -> None:
    await start(place.node)
    await place.answer(3, errors=1)
    await place.runner.flush()
    await aliases(place.node).set("pricing", "prices", "stable", {3: 100}, precondition=ANY, actor="key")
    ended = (await report(place.node)).canary
    assert (ended.state, await weights(place.node)) == (CanaryState.CANCELLED, {3: 100})
    ((actor, subject, after),) = await audited(place.node, "canary.cancel")
    assert (actor, subject, after["code"]) == ("key", "prices:stable", "alias_moved")
    assert after["candidate"] == {"version": 2, "requests": 4, "errors": 1, "empties": 0}
    await place.runner.tick()
    assert await weights(place.node) == {3: 100}
    await start(place.node)


async def test_a_rollback_out_of_a_canary_leads_to_where_it_began(place: Place) -> None:
    await start(place.node)
    await place.answer(20)
    place.node.clock.advance(60)
    await place.runner.tick()
    await aliases(place.node).roll_back("pricing", "prices", "stable", precondition=ANY, actor="key")
    assert await weights(place.node) == {1: 100}
    assert (await report(place.node)).canary.state is CanaryState.CANCELLED


async def test_a_rollback_after_a_promotion_skips_the_steps(place: Place) -> None:
    await start(place.node, policy=Policy(steps=(Step(50, 60),), min_requests=20))
    await place.answer(20)
    place.node.clock.advance(60)
    await place.runner.tick()
    assert await weights(place.node) == {2: 100}
    await aliases(place.node).roll_back("pricing", "prices", "stable", precondition=ANY, actor="key")
    assert await weights(place.node) == {1: 100}


async def test_a_cancelled_canary_leaves_all_traffic_where_it_was(place: Place) -> None:
    await start(place.node)
    ended = await canaries(place.node).cancel("pricing", "prices", "stable", precondition=ANY, actor="key")
    assert (ended.canary.state, await weights(place.node)) == (CanaryState.CANCELLED, {1: 100})
    assert len(await audited(place.node, "canary.cancel")) == 1
    with pytest.raises(Conflict, match="no running canary"):
        await canaries(place.node).cancel("pricing", "prices", "stable", precondition=ANY, actor="key")


async def test_what_cannot_become_a_canary(place: Place) -> None:
    node = place.node
    with pytest.raises(NotFound, match="never had a canary"):
        await report(node)
    with pytest.raises(Conflict, match="already points at version 1"):
        await start(node, 1)
    with pytest.raises(NotFound, match="no version 9"):
        await start(node, 9)
    with pytest.raises(InvalidRequest, match=r"policy.steps has 0 steps; use 1 to 20"):
        await start(node, policy=Policy(steps=()))
    stale = Precondition(if_match=frozenset({"1"}))
    with pytest.raises(PreconditionFailed):
        await canaries(node).start("pricing", "prices", "stable", 2, POLICY, precondition=stale, actor="key")
    third = await node.adapters.get_version("pricing", "prices", 3)
    await node.adapters.quarantine(third.key.version_id, "does not load")
    with pytest.raises(Conflict, match="prices@3 is quarantined, but must be ready"):
        await start(node, 3)
    await start(node)
    with pytest.raises(Conflict, match="already runs on the alias 'stable'"):
        await start(node)
    await aliases(node).set("pricing", "prices", "stable", {1: 50, 2: 50}, precondition=ANY, actor="key")
    with pytest.raises(Conflict, match="splits its traffic"):
        await start(node)
    assert await weights(node) == {1: 50, 2: 50}


async def test_of_many_canaries_started_at_once_one_is(place: Place, other_node: Node) -> None:
    started = await asyncio.gather(*(start(node) for node in (place.node, other_node) * 3), return_exceptions=True)
    assert sorted(type(result).__name__ for result in started) == ["CanaryReport", *["Conflict"] * 5]


async def test_another_tenants_alias_is_not_there(place: Place) -> None:
    await place.node.tenants.create("other", actor="cli")
    await start(place.node)
    service = canaries(place.node)
    calls = (
        service.get("other", "prices", "stable"),
        service.cancel("other", "prices", "stable", precondition=ANY, actor="key"),
        service.start("other", "prices", "stable", 2, POLICY, precondition=ANY, actor="key"),
    )
    for call in calls:
        with pytest.raises(NotFound, match="no adapter 'prices'"):
            await call


async def test_a_page_reads_the_figures_of_its_canaries_only(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    node, requests = place.node, list[int]()

    def counted(requests_of_node: int, *others: Any) -> Counts:
        requests.append(requests_of_node)
        return Counts(requests_of_node, *others)

    await start(node)
    await place.answer(3)
    for alias in ("beta", "gamma"):
        await aliases(node).set("pricing", "prices", alias, {1: 100}, precondition=ANY, actor="key")
        begun = await canaries(node).start("pricing", "prices", alias, 2, POLICY, precondition=ANY, actor="key")
        window = TrialWindow(begun.canary.id, begun.canary.revision, begun.canary.candidate_id)
        for _ in range(5):
            place.outcomes.count(window)
    await place.runner.flush()
    monkeypatch.setattr("app.database.canaries.Counts", counted)
    page = await canaries(node).running("pricing", limit=1)
    assert [(one.name, one.report.candidate.requests) for one in page.data] == [("pricing/prices:stable", 3)]
    assert requests == [3]
    others = await canaries(node).running(None, limit=2, cursor=page.next_cursor)
    assert [one.report.candidate.requests for one in others.data] == [5, 5]
