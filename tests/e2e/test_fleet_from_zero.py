"""Real engine replicas from zero: the first caller, a second tenant among many requests, and back to zero."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.demo.train import Demo
from tests.support.engine_replicas import replicas, status
from tests.support.fresh_metrics import fresh_metrics
from tests.support.postgres import running_postgres
from tests.support.server import START_S, Server, processes_of, serving, set_up, together
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow

logger = logging.getLogger(__name__)

REQUESTS = 1000


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("zero")
    with running_postgres() as database:
        scaling = {"TENORA_RAY__ADDRESS": "local", "TENORA_RAY__DOWNSCALE_DELAY_S": "2"}
        yield SLOTS | together(folder, database) | scaling


@pytest.fixture(scope="module")
def fleet(trained_demo: Demo, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("zero-home")
    admin_key = set_up(home, trained_demo.base, **settings)
    with (
        replicas(home, trained_demo.base, settings, "0:1"),
        serving(home, trained_demo.base, admin_key, **settings) as server,
    ):
        yield server


async def eventually(reached: Callable[[], bool], limit_s: float) -> None:
    async with asyncio.timeout(limit_s):
        while not await asyncio.to_thread(reached):
            await asyncio.sleep(0.5)


def is_waiting(fleet: Server, number: int) -> bool:
    with fleet.client() as client:
        return f"tenora_engine_requests_waiting {float(number)}" in fresh_metrics(client)


def engines_of(fleet: Server) -> list[int]:
    """Return the ids of the engines' processes. A replica leaves the list of replicas before its engine has ended."""
    found = []
    for process in processes_of(Path(fleet.home)):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "VLLM::" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


async def test_all_callers_are_answered_from_zero_and_back(
    fleet: Server, trained_demo: Demo, settings: dict[str, Any]
) -> None:
    many, late = fleet.tenant("many"), fleet.tenant("late")
    assert status(fleet.home, trained_demo.base, settings) == []
    answered: list[str] = []
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=fleet.url, timeout=START_S, limits=limits) as client:

        async def ask(key: str, name: str, **headers: str) -> int:
            body = {"model": "demo", "prompt": "What is coffee?", "max_tokens": 2}
            answer = await client.post(
                "/v1/completions", json=body, headers={"authorization": f"Bearer {key}"} | headers
            )
            answered.append(name)
            return answer.status_code

        assert (await client.get("/health/ready")).status_code == 200
        hasty = await client.post(
            "/v1/completions",
            json={"model": "demo", "prompt": "x"},
            headers={"authorization": f"Bearer {late}", "x-request-timeout": "1"},
        )
        assert hasty.status_code == 503, hasty.text
        assert int(hasty.headers["retry-after"]) >= 1
        began = time.monotonic()
        first = asyncio.ensure_future(ask(many, "first"))
        rest = [asyncio.ensure_future(ask(many, f"many-{number}")) for number in range(REQUESTS - 1)]
        await eventually(lambda: is_waiting(fleet, REQUESTS), START_S)
        rest.append(asyncio.ensure_future(ask(late, "late")))
        assert await first == 200
        logger.info("The first caller was answered after %.1f s.", time.monotonic() - began)
        assert set(await asyncio.gather(*rest)) == {200}
        logger.info("All callers were answered after %.1f s.", time.monotonic() - began)
    assert answered.index("late") < REQUESTS / 2
    await eventually(lambda: status(fleet.home, trained_demo.base, settings) == [], START_S)
    await eventually(lambda: not engines_of(fleet), START_S)
    with fleet.client() as caller:
        assert caller.get("/health/ready").status_code == 200
