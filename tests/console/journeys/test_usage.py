"""The usage page of a tenant shows the numbers of ``GET /v1/usage`` and ``GET /v1/requests``."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
from playwright.async_api import Browser, Locator, Page, expect

from tests.support.browser import sign_in, watched_page
from tests.support.console_pictures import Pictures
from tests.support.demo_server import DemoRun
from tests.support.request_log import logged
from tests.support.server import until

_TENANT = _ADAPTER = "supply-chain"
_IDLE_S = 120
#: Totals by their names on the page.
_SUMS = {
    "Requests": "requests",
    "Prompt tokens": "prompt_tokens",
    "Output tokens": "output_tokens",
    "Cold loads": "cold_loads",
}


async def test_the_usage_page_has_the_numbers_of_the_api(browser: Browser, demo: DemoRun, pictures: Pictures) -> None:
    with demo.client(demo.access.tenants[_TENANT].key) as tenant:
        await asyncio.to_thread(_use, demo, tenant)
        async with watched_page(browser, demo.printed_url) as page:
            await sign_in(page, demo.access.tenants[_TENANT].key)
            async with (
                page.expect_response(lambda response: "/v1/usage?" in response.url) as report,
                page.expect_response(lambda response: "/v1/requests" in response.url) as requests,
            ):
                await page.get_by_role("link", name="Usage").click()
            # The same addresses, so the same period.
            used = tenant.get((await report.value).url).json()
            listed = tenant.get((await requests.value).url).json()["data"]
            await _check_totals(page, used)
            await _check_adapters(page, used)
            await _check_requests(page, listed)
            await pictures.document(page, "console-usage")


def _use(demo: DemoRun, tenant: httpx.Client) -> None:
    """Set a price and send requests to two models, and wait until they are recorded.

    Requests that a test before this one left to the engine end first, so that their records come first too.
    """
    with demo.client(demo.access.admin_key) as admin:
        until(lambda: admin.get("/admin/engine").json()["queue"]["running"] == 0, _IDLE_S)
        price = {"prompt": "0.15", "output": "0.60"}
        assert admin.put(f"/admin/prices/{_TENANT}/{_ADAPTER}", json=price).is_success
    ids = []
    for model in (_ADAPTER, _ADAPTER, demo.access.base_model):
        answer = tenant.post("/v1/completions", json={"model": model, "prompt": "sugar", "max_tokens": 5})
        assert answer.status_code == 200, answer.text
        ids.append(answer.headers["x-request-id"])
    logged(tenant, ids)


async def _check_totals(page: Page, used: dict[str, Any]) -> None:
    await expect(page.get_by_role("term").filter(has_text="Requests")).to_be_visible()
    names, values = page.get_by_role("term"), page.get_by_role("definition")
    shown = dict(zip(await names.all_text_contents(), await values.all_text_contents(), strict=True))
    assert {name: shown[name] for name in (*_SUMS, "Cost")} == _sums(used["total"], used["currency"])


async def _check_adapters(page: Page, used: dict[str, Any]) -> None:
    rows = await _rows(page.get_by_role("table", name="Usage by adapter"), len(used["data"]))
    names = (*_SUMS, "Failed", "Cost")
    assert {row["adapter"]: {name: row[name] for name in names} for row in rows} == {
        group["adapter"] or "base model": _sums(group, used["currency"]) | {"Failed": f"{group['failed']:,}"}
        for group in used["data"]
    }


async def _check_requests(page: Page, listed: Sequence[dict[str, Any]]) -> None:
    rows = await _rows(page.get_by_role("table", name="Requests"), len(listed))
    assert [[row[name] for name in ("Request", "Model", "Key", "Status", "Tokens")] for row in rows] == [
        [
            request["id"],
            request["adapter"] or "base model",
            request["key_name"],
            str(request["status"]),
            f"{request['prompt_tokens']:,} + {request['output_tokens']:,}",
        ]
        for request in listed
    ]


def _sums(totals: dict[str, Any], currency: str) -> dict[str, str]:
    """Return totals as the page shows them."""
    return {name: f"{totals[key]:,}" for name, key in _SUMS.items()} | {"Cost": f"{totals['cost']} {currency}"}


async def _rows(table: Locator, count: int) -> list[dict[str, str]]:
    """Wait until a table has this many rows, and return their texts by the heads of the columns."""
    await expect(table.get_by_role("row")).to_have_count(count + 1)
    heads = await table.get_by_role("columnheader").all_text_contents()
    rows = [await row.get_by_role("cell").all_text_contents() for row in (await table.get_by_role("row").all())[1:]]
    return [dict(zip(heads, row, strict=True)) for row in rows]
