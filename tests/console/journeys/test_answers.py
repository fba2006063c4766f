"""Answers of the real engine in the playground: two at the same time, and stopped ones.

The demo's answers have about 25 tokens. These tests add ``ignore_eos`` to the requests, so that only their limit of
tokens or a stop ends them.
"""

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from playwright.async_api import Browser, Locator, Page, Response, Route, expect
from prometheus_client.parser import text_string_to_metric_families

from tests.support.browser import sign_in, watched_page
from tests.support.demo_server import DemoRun
from tests.support.fresh_metrics import fresh_metrics
from tests.support.request_log import logged
from tests.support.server import until

_TENANT = _ADAPTER = "supply-chain"
_CHATS = "**/v1/chat/completions"
_COLUMNS = (1, 2)
#: Tokens of an answer that ends, and of one that is stopped.
_SHORT, _LONG = 100, 1900
#: Longest wait for an idle engine. An answer that is not stopped ends meanwhile: its tokens tell.
_IDLE_S = 300
_GENERATED, _RUNNING = "vllm:generation_tokens_total", "vllm:num_requests_running"
#: Records the column of each growth of an answer.
_RECORD_GROWTHS = """
    () => {
        window.growths = [];
        document.querySelectorAll('[aria-label="Answer"]').forEach((answer, index) => {
            const grown = () => answer.textContent && window.growths.push(index + 1);
            const kinds = { childList: true, characterData: true, subtree: true };
            new MutationObserver(grown).observe(answer, kinds);
        });
    }
"""


@pytest.fixture
def tenant(demo: DemoRun) -> Iterator[httpx.Client]:
    with demo.client(demo.access.tenants[_TENANT].key) as client:
        yield client


async def test_two_answers_grow_at_the_same_time(browser: Browser, demo: DemoRun) -> None:
    async with watched_page(browser, demo.printed_url) as page:
        await _open_playground(page, demo)
        await page.evaluate(_RECORD_GROWTHS)
        await _ask(page, tokens=_SHORT)
        for number in _COLUMNS:
            await expect(_column(page, number)).to_contain_text("done")
            await expect(_column(page, number)).to_contain_text(f"{_SHORT} out")
        growths = await page.evaluate("window.growths")
    backwards = growths[::-1]
    last = {number: len(growths) - 1 - backwards.index(number) for number in _COLUMNS}
    assert growths.index(2) < last[1], "column 2 began after the end of column 1"
    assert growths.index(1) < last[2], "column 1 began after the end of column 2"


async def test_stop_ends_the_requests_in_the_engine(browser: Browser, demo: DemoRun, tenant: httpx.Client) -> None:
    ids: list[str] = []

    def keep_id(response: Response) -> None:
        if response.url.endswith(_CHATS.lstrip("*")):
            ids.append(response.headers["x-request-id"])

    async with watched_page(browser, demo.printed_url) as page:
        await _open_playground(page, demo)
        page.on("response", keep_id)
        before = await asyncio.to_thread(_engine, tenant, _GENERATED)
        await _ask(page, tokens=_LONG)
        for number in _COLUMNS:
            await expect(_answer(page, number)).not_to_be_empty()
        await page.get_by_role("button", name="Stop").click()
        for number in _COLUMNS:
            await expect(_column(page, number)).to_contain_text("stopped")
        await asyncio.to_thread(until, lambda: _engine(tenant, _RUNNING) == 0, _IDLE_S)
        made = await asyncio.to_thread(_engine, tenant, _GENERATED) - before
        records = await asyncio.to_thread(logged, tenant, ids)
    assert 0 < made < _LONG, "the engine went on after the stop"
    assert [record["status"] for record in records] == [499, 499]
    assert all(0 < record["output_tokens"] < _LONG for record in records)


async def _open_playground(page: Page, demo: DemoRun) -> None:
    await page.route(_CHATS, _ignore_end)
    await sign_in(page, demo.access.tenants[_TENANT].key)
    await page.get_by_role("link", name="Playground").click()
    for number, model in enumerate((_ADAPTER, demo.access.base_model), 1):
        await page.get_by_label(f"Model {number}").fill(model)


async def _ignore_end(route: Route) -> None:
    await route.continue_(post_data={**route.request.post_data_json, "ignore_eos": True})


async def _ask(page: Page, *, tokens: int) -> None:
    await page.get_by_label("Max tokens").fill(str(tokens))
    await page.get_by_label("Prompt", exact=True).fill("Can you explain sugar?")
    await page.get_by_role("button", name="Ask", exact=True).click()


def _column(page: Page, number: int) -> Locator:
    return page.get_by_role("region", name=f"Column {number}")


def _answer(page: Page, number: int) -> Locator:
    return _column(page, number).get_by_role("group", name="Answer")


def _engine(client: httpx.Client, name: str) -> float:
    """Return the current value of a metric of vLLM."""
    families = text_string_to_metric_families(fresh_metrics(client))
    (value,) = [sample.value for family in families for sample in family.samples if sample.name == name]
    return value
