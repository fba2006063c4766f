"""Time of the console's lists on a registry with 1,000 tenants and 20,000 adapters.

    python -m tests.console.large_registry
    python -m tests.console.large_registry --database-url postgresql+psycopg://USER@HOST/EMPTY_DATABASE

1,000 tenants have 10 adapters each, and one tenant has 10,000. Requests of the last 30 days are spread evenly over all
adapters. The command starts a server without an engine in another process, and prints two tables: the time of each
answer over HTTP with the server's CPU time for it, and the times in Chromium until a page paints and until it has its
rows. The CPU time also counts on a machine that does other work.
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psutil
from playwright.async_api import Browser, expect
from rich.console import Console
from rich.table import Table

from app.database import usage
from app.database.migrate import downgrade
from app.database.session import Database
from app.database.urls import database_url
from app.domain.usage import UsageRecord
from app.lab.bench.engineless import prepare, serving, set_up
from app.lab.bench.registry import fill
from app.services.access.key_format import mint_key
from app.services.access.peppers import load_peppers
from app.settings import Settings
from tests.support.browser import chromium, sign_in, watched_page

#: Bounds of a list: the time of its answer, and of its page's first paint.
ANSWER_MS, PAINT_MS = 200, 1000
_DAYS = 30
_BATCH = 5000
_SCOPES = ("adapters:read", "usage:read", "keys:write")
#: Keeps the time at which the page first has rows and nothing is loading.
_WATCH_ROWS = """
    new MutationObserver(() => {
        if (document.querySelector("main tbody tr") && !document.querySelector(".loading"))
            window.rowsAt ??= performance.now();
    }).observe(document, { childList: true, subtree: true });
"""
#: The browser reports the first paint once the frame is shown. The rows may be there before.
_TIMES = """
    () => {
        const [paint] = performance.getEntriesByName("first-contentful-paint");
        return paint && [paint.startTime, window.rowsAt];
    }
"""


@dataclass(frozen=True)
class Size:
    """Size of the registry.

    Attributes:
        adapters_each: adapters of each tenant but the largest.
        adapters_of_largest: adapters of one more tenant.
        requests: usage records.
    """

    tenants: int = 1000
    adapters_each: int = 10
    adapters_of_largest: int = 10_000
    requests: int = 100_000

    @property
    def largest(self) -> str:
        """Slug of the tenant with most adapters."""
        return f"tenant-{self.tenants + 1}"


@dataclass(frozen=True)
class AnswerTime:
    """Times of one path's answers over HTTP in milliseconds, and the mean CPU time of the server."""

    path: str
    median_ms: float
    worst_ms: float
    cpu_ms: float


@dataclass(frozen=True)
class PaintTime:
    """Worst times of one page in milliseconds: until it paints, and until it has its rows."""

    path: str
    paint_ms: float
    rows_ms: float


async def fill_registry(settings: Settings, size: Size) -> None:
    """Add tenants, adapters and usage to a registry that has no tenant."""
    database, peppers = Database(database_url(settings)), load_peppers(settings)
    try:
        await fill(database, [mint_key() for _ in range(size.tenants)], size.adapters_each, peppers=peppers)
        before = size.tenants * size.adapters_each
        await fill(
            database,
            [mint_key()],
            size.adapters_of_largest,
            peppers=peppers,
            tenants_before=size.tenants,
            adapters_before=before,
        )
        draw = random.Random(0)
        now = datetime.now(UTC)
        for first in range(0, size.requests, _BATCH):
            records = [_request(draw, size, now) for _ in range(min(_BATCH, size.requests - first))]
            async with database.write() as connection:
                await usage.add(connection, records)
    finally:
        await database.close()


def _request(draw: random.Random, size: Size, now: datetime) -> UsageRecord:
    small = size.tenants * size.adapters_each
    version = draw.randrange(small + size.adapters_of_largest) + 1
    tenant = size.tenants + 1 if version > small else (version - 1) // size.adapters_each + 1
    ttft = draw.lognormvariate(-2, 0.7)
    return UsageRecord(
        uuid.UUID(int=draw.getrandbits(128)).hex,
        now - timedelta(seconds=draw.uniform(0, _DAYS * 86400)),
        tenant,
        f"{tenant:016d}",
        version,
        prompt_tokens=draw.randrange(1, 2000),
        cached_tokens=0,
        output_tokens=draw.randrange(1, 500),
        ttft_s=ttft,
        duration_s=ttft + draw.lognormvariate(0, 1),
        load_s=0.2 if draw.random() < 0.1 else None,
        finish_reason="stop",
        status=200 if draw.random() < 0.99 else 503,
    )


def platform_paths(size: Size) -> list[str]:
    """Return the paths of lists and series that the pages of the platform ask for."""
    adapters, keys = f"/admin/tenants/{size.largest}/adapters", "/admin/keys/all"
    return [
        *("/admin/tenants", "/admin/tenants?q=99", "/admin/tenants?sort=-name", f"/admin/tenants/{size.largest}"),
        *(
            adapters,
            f"{adapters}?limit=200",
            f"{adapters}?q=9999",
            f"{adapters}?sort=-name",
            f"{adapters}?state=retired",
        ),
        *(keys, f"{keys}?q=bench", f"{keys}?working=true", "/admin/canaries", "/admin/deletions", "/admin/audit"),
        *("/admin/requests", "/admin/requests?failed=true", "/admin/requests?cold=true", "/admin/engine"),
        *(f"/admin/usage?by=tenant&from={_ago(days)}" for days in (1, 7, _DAYS)),
        *(f"/admin/usage/series?step={step}" for step in ("1m", "5m", "1h", "1d")),
    ]


def tenant_paths(size: Size) -> list[str]:
    """Return the paths of lists and series that the pages of the largest tenant ask for."""
    return [
        *("/v1/adapters", "/v1/adapters?q=9999", "/v1/keys", "/v1/canaries", "/v1/quota", "/v1/shared"),
        *("/v1/requests", "/v1/requests?failed=true", f"/v1/usage?by=adapter&from={_ago(1)}"),
        *(f"/v1/usage/series?step={step}" for step in ("1m", "5m", "1h", "1d")),
    ]


def pages(size: Size) -> list[str]:
    """Return the console's pages whose lists grow with tenants, adapters and requests."""
    own = f"/console/t/{size.largest}"
    return ["/console/tenants", "/console/keys", "/console/usage", f"{own}/adapters", f"{own}/usage", f"{own}/keys"]


def _ago(days: int) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


def answer_times(url: str, pid: int, key: str, paths: Sequence[str], *, rounds: int) -> list[AnswerTime]:
    """Time the answers to paths over HTTP on one connection to the server with this process id."""
    headers = {"authorization": f"Bearer {key}"}
    server = psutil.Process(pid)
    found = []
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        for path in paths:
            samples, before = [], server.cpu_times()
            for _ in range(rounds):
                begun = time.perf_counter()
                client.get(path).raise_for_status()
                samples.append(1000 * (time.perf_counter() - begun))
            after = server.cpu_times()
            cpu_s = after.user + after.system - before.user - before.system
            found.append(AnswerTime(path, statistics.median(samples), max(samples), 1000 * cpu_s / rounds))
    return found


async def paint_times(browser: Browser, url: str, key: str, paths: Sequence[str], *, rounds: int) -> list[PaintTime]:
    """Load each page, and time its first paint and its rows from the start of the navigation."""
    found = []
    async with watched_page(browser, url) as page:
        await page.add_init_script(_WATCH_ROWS)
        await sign_in(page, key)
        for path in paths:
            samples = []
            for _ in range(rounds):
                await page.goto(path)
                await expect(page.locator("main tbody tr").first).to_be_visible()
                await expect(page.locator(".loading")).to_have_count(0)
                times = await page.wait_for_function(_TIMES)
                samples.append(await times.json_value())
            paints, rows = zip(*samples, strict=True)
            found.append(PaintTime(path, max(paints), max(rows)))
    return found


def tenant_key(url: str, admin_key: str, tenant: str) -> str:
    headers = {"authorization": f"Bearer {admin_key}"}
    body = {"name": "lists", "scopes": list(_SCOPES)}
    answer = httpx.post(f"{url}/admin/tenants/{tenant}/keys", json=body, headers=headers, trust_env=False)
    return str(answer.raise_for_status().json()["key"])


def _print(console: Console, title: str, heads: Sequence[str], rows: Sequence[tuple[str, *tuple[float, ...]]]) -> None:
    table = Table("path", *heads, title=title)
    for path, *times in rows:
        table.add_row(path, *(f"{one:.0f}" for one in times))
    console.print(table)


async def _in_browser(url: str, key: str, size: Size, rounds: int) -> list[PaintTime]:
    async with chromium() as browser:
        return await paint_times(browser, url, key, pages(size), rounds=rounds)


def _run(settings: Settings, size: Size, rounds: int) -> bool:
    console = Console()
    admin_key = asyncio.run(set_up(settings))
    asyncio.run(fill_registry(settings, size))
    with serving(settings) as (url, pid):
        own_key = tenant_key(url, admin_key, size.largest)
        answers = answer_times(url, pid, admin_key, platform_paths(size), rounds=rounds)
        answers += answer_times(url, pid, own_key, tenant_paths(size), rounds=rounds)
        heads = ("median ms", "worst ms", "CPU ms")
        _print(console, "answers", heads, [(one.path, one.median_ms, one.worst_ms, one.cpu_ms) for one in answers])
        paints = asyncio.run(_in_browser(url, admin_key, size, rounds))
    _print(console, "pages", ("paint ms", "rows ms"), [(one.path, one.paint_ms, one.rows_ms) for one in paints])
    slow = [one.path for one in answers if one.median_ms > ANSWER_MS]
    slow += [one.path for one in paints if one.paint_ms > PAINT_MS]
    console.print(f"over the bounds of {ANSWER_MS} ms and {PAINT_MS} ms: {', '.join(slow) or 'nothing'}")
    return not slow


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.console.large_registry", description="Time the console's lists on a large registry."
    )
    parser.add_argument("--database-url", help="URL of an empty PostgreSQL database; default: SQLite")
    parser.add_argument("--rounds", type=int, default=10, help="answers of each path, and loads of each page")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        base, _ = prepare(folder, 2**20)
        settings = Settings(home=folder / "home", base_model=str(base))
        if given.database_url is not None:
            settings = settings.model_copy(update={"database_url": given.database_url})
            stack.callback(downgrade, given.database_url)
        return 0 if _run(settings, Size(), given.rounds) else 1


if __name__ == "__main__":
    raise SystemExit(main())
