"""Clock skew between servers: each server reports the skew of the others."""

import logging
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.services.operations.nodes import MOST_APART_S, NodeService, Peer
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)

FIRST, SECOND = "1" * 32, "2" * 32


@pytest.fixture
async def database(registry_url: str) -> AsyncIterator[Database]:
    database = Database(registry_url)
    yield database
    await database.close()


def off_by(seconds: float) -> Clock:
    return lambda: utc_now() + timedelta(seconds=seconds)


async def pair(database: Database, seconds: float) -> tuple[NodeService, NodeService]:
    """Two live servers that know each other; the second server's clock is ahead."""
    nodes = [
        NodeService(database, FIRST, "one", clock=off_by(0)),
        NodeService(database, SECOND, "two", clock=off_by(seconds)),
    ]
    for node in nodes:
        await node.register()
    for node in nodes * 2:
        await node.beat()
    return nodes[0], nodes[1]


async def peer(node: NodeService, number: str) -> Peer:
    return next(one for one in await node.peers() if one.node.id == number)


@pytest.mark.parametrize("database_kind", ["postgresql"])
@pytest.mark.parametrize("seconds", [MOST_APART_S + 3, -MOST_APART_S - 3, 3600])
async def test_clocks_that_are_apart_are_told(
    database: Database, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        one, two = await pair(database, seconds)
        for _ in range(3):
            await one.beat()
    assert one.clock_spread_s == pytest.approx(abs(seconds), abs=2)
    assert two.clock_offset_s is not None
    assert one.clock_offset_s is not None
    assert two.clock_offset_s - one.clock_offset_s == pytest.approx(seconds, abs=2)
    seen = await peer(one, SECOND)
    # A wrong clock does not make the server count as dead.
    assert (seen.alive, seen.clock_apart) == (True, True)
    assert seen.clock_ahead_s == pytest.approx(seconds, abs=2)
    assert not (await peer(one, FIRST)).clock_apart
    warnings = [record.getMessage() for record in caplog.records if "The clock of node two" in record.getMessage()]
    assert len(warnings) == 1
    assert ("ahead of" if seconds > 0 else "behind") in warnings[0]


@pytest.mark.parametrize("database_kind", ["postgresql"])
async def test_clocks_that_agree_are_not_told(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        one, _ = await pair(database, 1)
    assert one.clock_spread_s < MOST_APART_S
    assert not (await peer(one, SECOND)).clock_apart
    assert "clock" not in caplog.text


@pytest.mark.parametrize("database_kind", ["sqlite"])
async def test_a_database_without_a_clock_tells_nothing(database: Database) -> None:
    one, _ = await pair(database, 20)
    assert (one.clock_offset_s, one.clock_spread_s) == (None, 0.0)
    seen = await peer(one, SECOND)
    assert (seen.clock_ahead_s, seen.clock_apart) == (None, False)


@pytest.mark.parametrize("database_kind", ["postgresql"])
async def test_an_answer_that_takes_long_tells_nothing_of_clocks(node: Node, database: Database) -> None:
    ticks = iter([utc_now() + timedelta(seconds=seconds) for seconds in (0, 0, 100, 100, 100)])
    slow = NodeService(database, FIRST, "one", clock=lambda: next(ticks))
    await slow.register()
    await slow.beat()
    assert slow.clock_offset_s is None
