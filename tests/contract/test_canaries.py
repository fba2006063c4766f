"""Canaries on both databases: steps, breaches, restarts, and several servers of which exactly one acts."""

import asyncio
from typing import Any

import pytest

from app.domain.canaries import CanaryState
from app.domain.canary_policy import Policy, Step
from app.domain.errors import RegistryUnavailable
from app.services.rollout.outcomes import TrialWindow
from tests.support.canaries import ANY, Place, aliases, audited, canaries, report, resolved, start, weights

pytest_plugins = ("tests.support.registry_fixtures", "tests.support.canary_fixtures")


async def test_a_good_canary_goes_step_by_step_and_takes_over(place: Place) -> None:
    node = place.node
    await start(node)
    for expected in ({2: 5, 1: 95}, {2: 25, 1: 75}, {2: 100}):
        assert await weights(node) == expected
        assert (await resolved(node)).canary_id is not None
        await place.answer(400, candidate=False)
        await place.answer(20)
        await place.runner.tick()
        assert await weights(node) == expected, "before its time"
        node.clock.advance(60)
        await place.runner.tick()
    found = await report(node)
    assert (found.canary.state, found.verdict, await weights(node)) == (CanaryState.PROMOTED, None, {2: 100})
    assert (await resolved(node)).canary_id is None
    assert [len(await audited(node, f"canary.{verb}")) for verb in ("start", "advance", "promote")] == [1, 2, 1]
    history = await aliases(node).history("pricing", "prices", "stable")
    assert [(change.actor, change.action) for change in history.data] == [
        ("canary", "promote"),
        ("canary", "canary"),
        ("canary", "canary"),
        ("key", "canary"),
        ("key", "move"),
    ]


async def test_a_step_waits_for_its_requests_and_says_so(place: Place) -> None:
    await start(place.node)
    place.node.clock.advance(10_000)
    await place.answer(19)
    await place.runner.tick()
    assert await weights(place.node) == {2: 5, 1: 95}
    verdict = (await report(place.node)).verdict
    assert verdict is not None
    assert "19 of 20 requests" in verdict.message
    await place.answer(1)
    await place.runner.tick()
    assert await weights(place.node) == {2: 25, 1: 75}


@pytest.mark.parametrize(("kind", "code"), [("errors", "error_rate"), ("empties", "empty_rate")])
async def test_a_breach_moves_all_traffic_back_and_says_why(place: Place, kind: str, code: str) -> None:
    node = place.node
    await start(node)
    await place.answer(100, candidate=False)
    failed: dict[str, Any] = {kind: 6}
    await place.answer(0, **failed)
    await place.runner.tick()
    assert await weights(node) == {1: 100}
    assert ((await resolved(node)).number, (await resolved(node)).canary_id) == (1, None)
    found = await report(node)
    reason = found.canary.reason
    assert found.canary.state is CanaryState.ROLLED_BACK
    assert found.canary.ended_at == node.clock.now
    assert reason is not None
    assert (reason["code"], reason["step"]) == (code, 0)
    nothing = {"errors": 0, "empties": 0, "streamed": 0, "ttft_p95_s": None}
    assert reason["baseline"] == {**nothing, "version": 1, "requests": 100}
    assert reason["candidate"] == {**nothing, "version": 2, "requests": 6, kind: 6}
    ((actor, subject, after),) = await audited(node, "canary.rollback")
    assert (actor, subject) == ("canary", "prices:stable")
    assert {name: after[name] for name in reason} == reason
    assert after["targets"] == {"1": 100}
    newest = (await aliases(node).history("pricing", "prices", "stable", limit=1)).data[0]
    assert (newest.action, newest.targets, newest.reason) == ("canary-rollback", {1: 100}, reason["message"])


async def test_one_unlucky_error_moves_nothing(place: Place) -> None:
    await start(place.node)
    await place.answer(100, candidate=False)
    await place.answer(3, errors=1)
    await place.runner.tick()
    assert await weights(place.node) == {2: 5, 1: 95}


async def test_a_candidate_that_cannot_be_loaded_is_a_breach(place: Place) -> None:
    found = await start(place.node)
    await place.node.adapters.quarantine(found.canary.candidate_id, "the engine could not load it")
    await place.runner.tick()
    ended = (await report(place.node)).canary
    assert (ended.state, await weights(place.node)) == (CanaryState.ROLLED_BACK, {1: 100})
    assert ended.reason is not None
    assert ended.reason["code"] == "version_quarantined"
    assert "the engine could not load it" in ended.reason["message"]


async def test_figures_of_all_servers_count_together(place: Place, other_place: Place) -> None:
    await start(place.node)
    await place.answer(40, candidate=False)
    await other_place.answer(60, candidate=False)
    await place.answer(0, empties=3)
    await place.runner.tick()
    assert await weights(place.node) == {2: 5, 1: 95}
    await other_place.answer(0, empties=3)
    await other_place.runner.tick()
    assert await weights(place.node) == {1: 100}
    found = await report(other_place.node)
    assert (found.baseline.requests, found.candidate.requests, found.candidate.empties) == (100, 6, 6)


@pytest.mark.parametrize("empties", [0, 10])
async def test_of_two_servers_exactly_one_acts(place: Place, other_place: Place, empties: int) -> None:
    for _ in range(5):
        await start(place.node)
        await place.answer(100, candidate=False)
        await other_place.answer(20 - empties, empties=empties)
        await asyncio.gather(place.runner.flush(), other_place.runner.flush())
        place.node.clock.advance(60)
        await asyncio.gather(*(each.runner.tick() for each in (place, other_place)))
        if empties:
            assert await weights(other_place.node) == {1: 100}
        else:
            assert await weights(other_place.node) == {2: 25, 1: 75}
            await canaries(place.node).cancel("pricing", "prices", "stable", precondition=ANY, actor="key")
    assert len(await audited(place.node, "canary.rollback")) == (5 if empties else 0)
    assert len(await audited(place.node, "canary.advance")) == (0 if empties else 5)
    history = await aliases(place.node).history("pricing", "prices", "stable")
    assert len(history.data) == 1 + 5 * (2 if empties else 3)


async def test_a_server_that_comes_back_goes_on_in_the_middle(place: Place) -> None:
    node = place.node
    await start(node)
    await place.answer(100, candidate=False)
    await place.answer(12)
    node.clock.advance(50)
    await place.runner.tick()
    place.restart()
    await place.answer(8)
    node.clock.advance(10)
    await place.runner.tick()
    assert await weights(node) == {2: 25, 1: 75}
    place.restart()
    await place.answer(100, candidate=False)
    await place.answer(0, errors=6)
    await place.runner.tick()
    assert await weights(node) == {1: 100}
    assert (await report(node)).canary.step == 1


async def test_late_trouble_is_not_hidden_by_a_good_beginning(place: Place) -> None:
    await start(place.node, policy=Policy(steps=(Step(50, 86_400),)))
    await place.answer(5000, candidate=False)
    await place.answer(5000)
    await place.runner.tick()
    place.node.clock.advance(3600)
    await place.runner.tick()
    await place.answer(50, candidate=False)
    await place.answer(0, empties=10)
    await place.runner.tick()
    assert await weights(place.node) == {1: 100}


async def test_a_baseline_without_traffic_keeps_its_figures(place: Place) -> None:
    node = place.node
    await start(node, policy=Policy(steps=(Step(50, 60), Step(100, 60)), min_requests=20))
    await place.answer(80, empties=20, candidate=False)
    await place.answer(16, empties=4)
    node.clock.advance(60)
    await place.runner.tick()
    assert await weights(node) == {2: 100}
    await place.answer(80, empties=20)
    await place.runner.tick()
    found = await report(node)
    assert (found.canary.state, found.baseline.requests, found.candidate.requests) == (CanaryState.RUNNING, 100, 100)
    await place.answer(0, empties=200)
    await place.runner.tick()
    assert await weights(node) == {1: 100}


async def test_answers_of_an_earlier_step_do_not_count_now(place: Place) -> None:
    found = await start(place.node)
    stale = TrialWindow(found.canary.id, found.canary.revision, found.canary.candidate_id)
    await place.answer(20)
    place.node.clock.advance(60)
    await place.runner.tick()
    for _ in range(20):
        place.outcomes.count(stale, empty=True)
    await place.runner.tick()
    assert await weights(place.node) == {2: 25, 1: 75}
    assert (await report(place.node)).candidate.requests == 0


async def test_figures_that_could_not_be_written_are_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await start(place.node)
    await place.answer(7)

    def broken() -> None:
        raise RegistryUnavailable("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(place.node.database, "write", broken)
        with pytest.raises(RegistryUnavailable):
            await place.runner.flush()
    await place.answer(1)
    await place.runner.flush()
    assert (await report(place.node)).candidate.requests == 8


async def test_a_recipient_is_one_sample_on_all_servers_together(place: Place, other_place: Place) -> None:
    await start(place.node)
    for _ in range(3):
        for server in (place, other_place):
            await server.answer(errors=10, empties=10, recipient=77)
            await server.runner.tick()
    shown = await report(place.node)
    assert (shown.canary.state, shown.candidate.requests, shown.candidate.errors) == (CanaryState.RUNNING, 1, 1)


async def test_many_recipients_together_are_evidence(place: Place) -> None:
    await start(place.node)
    for recipient in range(100, 120):
        await place.answer(empties=1, recipient=recipient)
    await place.runner.tick()
    assert (await report(place.node)).canary.state is CanaryState.ROLLED_BACK


async def test_a_recipient_cannot_carry_a_canary_on(place: Place) -> None:
    await start(place.node)
    place.node.clock.advance(61)
    await place.answer(1000, recipient=77)
    await place.runner.tick()
    assert (await report(place.node)).canary.step == 0
