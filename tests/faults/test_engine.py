"""Engines killed or suspended under load: detected and restarted."""

import asyncio
import random
import signal
import time

import pytest

from tests.support.faults.load import OK, Load
from tests.support.faults.report import Measured
from tests.support.faults.site import Site


@pytest.mark.parametrize(
    ("fault", "harm", "hangs"), [("engine killed", signal.SIGKILL, 0), ("engine hung", signal.SIGSTOP, 1)]
)
async def test_an_engine_that_fails_is_replaced(
    site: Site, chance: random.Random, seed: int, fault: str, harm: signal.Signals, hangs: int
) -> None:
    """Kill any engine process or the fork server, whose mere presence a running engine needs.

    The kernel also sends SIGKILL to a process that uses too much memory.
    """
    restarts, hung = site.metric("tenora_engine_restarts_total"), site.metric("tenora_engine_hangs_total")
    processes = site.host.server.engine_processes()
    async with Load(site.host.url, site.units) as load:
        await asyncio.sleep(chance.uniform(0, 2))
        chance.choice(processes if hangs else [*processes, site.host.server.fork_server()]).send_signal(harm)
        began = time.monotonic()
        assert (await asyncio.to_thread(site.make_key)) == OK, "what needs no engine goes on"
        recovery_s = await load.settled(began)
        results = load.seen(began)
    assert set(results) == {OK, "engine_unavailable"}, results
    assert site.metric("tenora_engine_restarts_total") == restarts + 1
    assert site.metric("tenora_engine_hangs_total") == hung + hangs
    assert not [process for process in processes if process.is_running()], "something of the old engine is left"
    site.check_promises(load.promises)
    Measured(fault, results, recovery_s).write(seed)
