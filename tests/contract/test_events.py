"""Event feed on both databases: commit order, slow readers, too many readers, and a reader that reconnects."""

import asyncio
from datetime import UTC, datetime

import pytest

import app.domain.events
from app.database import audit, events
from app.domain.errors import Busy, InvalidRequest, TooManyOpen
from app.domain.events import Audience, Event
from app.engine.port import EngineEvent
from app.services.operations.events import MOST_OF_TENANT, EventFeed, Subscription
from tests.support.deleting import FIRST
from tests.support.registry import Node
from tests.support.serving import NoEngine

pytest_plugins = ("tests.support.registry_fixtures",)


@pytest.fixture
def feed(node: Node) -> EventFeed:
    return EventFeed(node.database, NoEngine(), FIRST, clock=node.clock)


async def write(node: Node, subject: str, *, tenant: str = "pricing") -> None:
    async with node.database.write() as connection:
        await record(node, connection, subject, tenant=tenant)


async def record(node: Node, connection, subject: str, *, tenant: str = "pricing") -> None:  # type: ignore[no-untyped-def]
    await audit.record(
        connection, at=node.clock(), actor="key", action="version.publish", tenant=tenant, subject=subject
    )


async def heard(subscription: Subscription) -> list[str]:
    """Return the events that can be read now."""
    subjects = []
    while (event := await subscription.next(0.05)) is not None:
        subjects.append(event.subject)
    return subjects


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)  # SQLite has one writer at a time
async def test_what_commits_late_is_told_in_its_place(
    node: Node, feed: EventFeed, registry_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(node, "first")
    subscription = await feed.subscribe(Audience(), after=0)
    await feed.poll()
    assert await heard(subscription) == ["first"]
    async with node.database.write() as slow:
        await record(node, slow, "second")
        await write(node, "third")
        await feed.poll()
        assert await heard(subscription) == []
    await feed.poll()
    assert await heard(subscription) == ["second", "third"]


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)  # SQLite has one writer at a time
async def test_a_rolled_back_id_delays_briefly_and_late_ids_arrive(
    node: Node, feed: EventFeed, registry_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.domain.events, "GAP_S", 0.0)
    subscription = await feed.subscribe(Audience(), after=None)
    async with node.database.write() as slow:
        await record(node, slow, "late")
        await write(node, "punctual")
        await feed.poll()
        assert await heard(subscription) == ["punctual"]
    await feed.poll()
    await feed.poll()
    assert await heard(subscription) == ["late"]


async def test_a_reconnected_reader_gets_each_event_once(node: Node, feed: EventFeed) -> None:
    for number in range(450):
        async with node.database.write() as connection:
            await record(node, connection, str(number))
            if number == 100:
                await record(node, connection, "theirs", tenant="supply-chain")
    node.clock.advance(60)
    other = await feed.subscribe(Audience(), after=None)
    await write(node, "450")
    await feed.poll()
    mine = await feed.subscribe(Audience("pricing"), after=0)
    await write(node, "451")
    for _ in range(3):
        await feed.poll()
    assert await heard(mine) == [str(number) for number in range(452)]
    assert await heard(other) == ["450", "451"]
    again = await feed.subscribe(Audience(), after=452)
    assert await heard(again) == ["451"]


async def test_a_reader_that_is_too_slow_is_ended_and_may_come_back(node: Node, feed: EventFeed) -> None:
    slow, quick = await feed.subscribe(Audience(), after=None), await feed.subscribe(Audience(), after=None)
    seen = 0
    for number in range(1001):
        event = Event(number + 1, datetime.now(UTC), "version.publish", "pricing", str(number))
        for subscription in (slow, quick):
            subscription.offer(event)
        seen += await quick.next(1) is not None
    assert seen == 1001
    assert quick.ended is None
    assert slow.ended is not None
    assert "too slow" in slow.ended


async def test_a_tenant_takes_no_others_places(node: Node, feed: EventFeed) -> None:
    own = Audience("pricing", node.clock(), whole=False)
    listeners = [await feed.subscribe(own, after=None, listener="pricing") for _ in range(MOST_OF_TENANT)]
    with pytest.raises(TooManyOpen, match=f"has {MOST_OF_TENANT} event feeds open"):
        await feed.subscribe(own, after=None, listener="pricing")
    await feed.subscribe(own, after=None, listener="neighbour")
    await feed.subscribe(Audience(), after=None)
    listeners[0].close()
    listeners[0].close()
    await feed.subscribe(own, after=None, listener="pricing")
    with pytest.raises(TooManyOpen):
        await feed.subscribe(own, after=None, listener="pricing")


async def test_a_tenant_that_asks_for_many_at_once_gets_no_more(node: Node, feed: EventFeed) -> None:
    own = Audience("pricing", node.clock(), whole=False)
    asked = [feed.subscribe(own, after=None, listener="pricing") for _ in range(3 * MOST_OF_TENANT)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, Subscription) for answer in answers) == MOST_OF_TENANT
    assert sum(isinstance(answer, TooManyOpen) for answer in answers) == 2 * MOST_OF_TENANT


async def test_places_are_bounded_and_the_platform_keeps_its_own(node: Node, feed: EventFeed) -> None:
    for number in range(32):
        audience = Audience(f"unit-{number}", node.clock(), whole=False)
        for _ in range(MOST_OF_TENANT):
            await feed.subscribe(audience, after=None, listener=f"unit-{number}")
    with pytest.raises(Busy):
        await feed.subscribe(Audience("late", node.clock(), whole=False), after=None, listener="late")
    for _ in range(32):
        await feed.subscribe(Audience(), after=None)
    with pytest.raises(Busy):
        await feed.subscribe(Audience(), after=None)


async def test_the_server_that_stops_wakes_who_listens(node: Node, feed: EventFeed) -> None:
    subscription = await feed.subscribe(Audience(), after=None)
    feed.end()
    assert await subscription.next(30) is None
    assert subscription.ended == "The server is shutting down."


@pytest.mark.parametrize("after", [-1, 2**31])
async def test_a_place_that_can_be_none_is_refused(node: Node, feed: EventFeed, after: int) -> None:
    with pytest.raises(InvalidRequest, match=r"^after is .*, but must be 0 to 2147483647\."):
        await feed.subscribe(Audience(), after=after)


async def test_events_during_a_name_lookup_are_reported(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.tenants.create("pricing", actor="cli")
    first, second = [(await node.publish("pricing", "prices", content)).key.version_id for content in "ab"]
    engine = NoEngine()
    feed = EventFeed(node.database, engine, FIRST, clock=node.clock)
    subscription = await feed.subscribe(Audience("pricing"), after=None)
    looked_up = events.version_names

    async def meanwhile(connection, ids):  # type: ignore[no-untyped-def]
        names = await looked_up(connection, ids)
        engine.tell(EngineEvent("evict", second))
        return names

    engine.tell(EngineEvent("load", first, 0.5))
    with monkeypatch.context() as patch:
        patch.setattr(events, "version_names", meanwhile)
        await feed.poll()
    assert await heard(subscription) == ["prices@1"]
    await feed.poll()
    event = await subscription.next(0.05)
    assert event is not None
    assert (event.type, event.subject, event.node) == ("engine.evict", "prices@2", FIRST)
