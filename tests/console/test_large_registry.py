"""The command that times lists on a large registry: every path of it answers, and its figures are times."""

import asyncio
import os
from pathlib import Path

from playwright.async_api import Browser

from app.lab.bench.engineless import NoEngine, prepare, set_up
from app.main import create_app
from app.settings import Settings
from tests.console.large_registry import (
    Size,
    answer_times,
    fill_registry,
    paint_times,
    platform_paths,
    tenant_key,
    tenant_paths,
)
from tests.support.console_site import ConsoleSite
from tests.support.live_server import live_server

SMALL = Size(tenants=3, adapters_each=2, adapters_of_largest=5, requests=40)


def test_every_path_of_the_command_answers(tmp_path: Path) -> None:
    base, _ = prepare(tmp_path, 2**20)
    settings = Settings(home=tmp_path / "home", base_model=str(base))
    admin_key = asyncio.run(set_up(settings))
    asyncio.run(fill_registry(settings, SMALL))
    with live_server(create_app(settings, engine=NoEngine())) as url:
        own_key = tenant_key(url, admin_key, SMALL.largest)
        times = answer_times(url, os.getpid(), admin_key, platform_paths(SMALL), rounds=2)
        times += answer_times(url, os.getpid(), own_key, tenant_paths(SMALL), rounds=2)
    assert all(0 < one.median_ms <= one.worst_ms for one in times)


async def test_the_paint_and_the_rows_of_a_page_are_timed(browser: Browser, site: ConsoleSite) -> None:
    (found,) = await paint_times(browser, site.url, site.admin_key, ["/console/tenants"], rounds=2)
    assert found.paint_ms > 0
    assert found.rows_ms > 0
