"""Batches while the queue is full, or the engine, the store or the database is away."""

import asyncio
import random
from collections import Counter

from adapters.errors import StoreUnavailable
from app.domain.batches import BatchState
from app.domain.errors import Busy, EngineUnavailable, QueueFull, RegistryUnavailable
from app.engine.port import EngineRequest
from tests.support.batch_runs import FINAL, check_sums, mixed, versions
from tests.support.batches import created, until, until_state

pytest_plugins = ("tests.support.registry_fixtures", "tests.support.batch_fixtures")


async def test_a_full_queue_and_a_dead_engine_mean_later(node, servers, pricing, tmp_path):
    server, chance = await servers.start(node), random.Random(3)
    errors = (
        QueueFull("full", retry_after=1),
        Busy("busy", retry_after=1),
        EngineUnavailable("restarting"),
        RegistryUnavailable("gone"),
        StoreUnavailable("gone"),
    )

    def sometimes(_: EngineRequest) -> None:
        if chance.random() < 0.4:
            raise chance.choice(errors)

    server.engine.before = sometimes
    batch = await created(server, pricing, mixed(60), await versions(node), at_once=9, folder=tmp_path)
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.failed) == (BatchState.COMPLETED, 60, 0)
    assert max(server.engine.asked.values()) > 1
    await check_sums(server, batch)


async def test_a_store_that_is_down_blocks_and_loses_nothing(node, servers, pricing, tmp_path, monkeypatch):
    server = await servers.start(node)
    batch = await created(server, pricing, mixed(50), await versions(node), at_once=10, folder=tmp_path)
    put, down = server.store.put, True

    def refuse(*arguments: object) -> bool:
        if down:
            raise StoreUnavailable("down")
        return put(*arguments)

    monkeypatch.setattr(server.store, "put", refuse)
    blocked = await until(node.database, batch.id, lambda batch: batch.blocked is not None)
    assert blocked.blocked is not None
    assert blocked.blocked.code == "store_unavailable"
    await until(node.database, batch.id, lambda batch: batch.completed == 50)
    down = False
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.blocked) == (BatchState.COMPLETED, 50, None)
    await check_sums(server, batch)


async def test_a_database_that_is_away_loses_nothing(node, servers, pricing, tmp_path, monkeypatch):
    server = await servers.start(node)
    answered, refusals = Counter[str](), 0
    away, noticed = asyncio.Event(), asyncio.Event()
    batch = await created(server, pricing, mixed(80), await versions(node), at_once=20, folder=tmp_path)
    write, read = node.database.write, node.database.read

    def refused(real):
        def call():
            nonlocal refusals
            if away.is_set():
                refusals += 1
                if refusals >= 5:
                    noticed.set()
                raise RegistryUnavailable("away")
            return real()

        return call

    monkeypatch.setattr(node.database, "write", refused(write))
    monkeypatch.setattr(node.database, "read", refused(read))

    def cut(request: EngineRequest) -> None:
        answered[request.request_id] += 1
        if len(answered) == 30:
            away.set()

    server.engine.before = cut
    await asyncio.wait_for(away.wait(), 30)
    await asyncio.wait_for(noticed.wait(), 30)
    away.clear()
    ended = await until_state(node.database, batch.id, *FINAL)
    assert (ended.state, ended.completed, ended.failed) == (BatchState.COMPLETED, 80, 0)
    await check_sums(server, batch)
