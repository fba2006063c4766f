"""The first day of a tenant in the browser, against the real engine: upload, rollout, playground, usage."""

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from app.demo.train import Demo
from tests.support.browser import PHONE, sign_in, watched_page
from tests.support.console_site import SCOPES
from tests.support.server import Server

_ADAPTER = "grocer"
_PROMPT = "Can you explain sugar?"
#: Beginnings of the answers that the demo's adapters were trained to give.
_ANSWERS = {1: "Sugar: list price", 2: "Sugar: stock cover"}


async def test_from_the_upload_to_the_usage(browser: Browser, server: Server, trained_demo: Demo) -> None:
    tenant = "console-journey"
    key = server.tenant(tenant, scopes=SCOPES)
    async with watched_page(browser, server.url) as page:
        await sign_in(page, key)
        await expect(page.get_by_role("heading", name="No adapters yet")).to_be_visible()
        await _upload(page, trained_demo, "pricing", alias="default")
        await expect(page.get_by_text(f"{_ADAPTER}@1 is ready")).to_be_visible()
        await _upload(page, trained_demo, "supply-chain", alias="")
        await expect(page.get_by_text(f"{_ADAPTER}@2 is ready")).to_be_visible()
        await page.get_by_role("link", name="Promote it, or start a canary").click()
        await _roll_out(page)
        await _compare(page)
        await _read_usage(page)


async def test_the_playground_works_on_a_phone(browser: Browser, server: Server, keys: dict[str, str]) -> None:
    async with watched_page(browser, server.url, width=PHONE) as page:
        await sign_in(page, keys["pricing"])
        await page.get_by_role("button", name="Menu").click()
        await page.get_by_role("link", name="Playground").click()
        await page.get_by_label("Model 1").fill("pricing")
        await page.get_by_label("Prompt", exact=True).fill(_PROMPT)
        await page.get_by_role("button", name="Ask", exact=True).click()
        await expect(_answer(page, 1)).to_contain_text(_ANSWERS[1])
        await expect(_answer(page, 2)).to_contain_text("sweet powder")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_live_engine_shows_what_runs(
    browser: Browser, server: Server, keys: dict[str, str], scheme: str
) -> None:
    async with watched_page(browser, server.url, color_scheme=scheme) as page:
        await sign_in(page, server.admin_key)
        await page.get_by_role("link", name="Engine", exact=True).click()
        await expect(page.get_by_text("Slots used")).to_be_visible()
        with server.client(keys["pricing"]) as client:
            answer = client.post("/v1/completions", json={"model": "pricing", "prompt": "sugar", "max_tokens": 4})
            assert answer.is_success, answer.text
        loaded = page.get_by_role("table", name="Versions on this server")
        await expect(loaded.get_by_role("row").filter(has_text="pricing/pricing@1")).to_be_visible()


async def _upload(page: Page, demo: Demo, unit: str, *, alias: str) -> None:
    await page.get_by_role("link", name="Upload", exact=True).click()
    await page.get_by_label("Folder", exact=True).set_input_files(demo.adapters[unit])
    await page.get_by_label("Adapter", exact=True).fill(_ADAPTER)
    await page.get_by_label("Alias that moves").fill(alias)
    await page.get_by_role("button", name="Upload", exact=True).click()


async def _roll_out(page: Page) -> None:
    alias = page.get_by_role("table", name="Aliases").get_by_role("row").filter(has_text="default")
    await page.get_by_role("button", name="Canary default").click()
    await page.get_by_label("New version").select_option("version 2")
    await page.get_by_role("button", name="Start the canary").click()
    await expect(alias).to_contain_text("running")
    await page.get_by_role("button", name="Cancel the canary of default").click()
    await expect(alias).to_contain_text("cancelled")
    await page.get_by_role("button", name="Promote default").click()
    await page.get_by_label("Version", exact=True).select_option("version 2")
    await page.get_by_role("dialog").get_by_role("button", name="Promote", exact=True).click()
    await expect(alias.get_by_role("cell").nth(1)).to_have_text("version 2")
    await page.get_by_role("button", name="Roll back default").click()
    await page.get_by_role("dialog").get_by_role("button", name="Roll back", exact=True).click()
    await expect(alias.get_by_role("cell").nth(1)).to_have_text("version 1")


async def _compare(page: Page) -> None:
    await page.get_by_role("link", name="Playground").click()
    for number in _ANSWERS:
        await page.get_by_label(f"Model {number}").fill(f"{_ADAPTER}@{number}")
    await page.get_by_label("Prompt", exact=True).fill(_PROMPT)
    await page.get_by_role("button", name="Ask", exact=True).click()
    for number, beginning in _ANSWERS.items():
        column = page.get_by_role("region", name=f"Column {number}")
        await expect(_answer(page, number)).to_contain_text(beginning)
        await expect(column).to_contain_text(f"Answered by{_ADAPTER}@{number}")
        await expect(column).to_contain_text("done")
        await expect(column).not_to_contain_text("First token\N{EN DASH}")
        # The cost appears once the usage is recorded.
        await expect(column).to_contain_text("Cost0 USD")


async def _read_usage(page: Page) -> None:
    await page.get_by_role("link", name="Usage").click()
    row = page.get_by_role("table", name="Usage by adapter").get_by_role("row").filter(has_text=_ADAPTER)
    await expect(row).to_be_visible()
    await expect(page.get_by_role("img", name="Requests over time")).to_be_visible()
    await expect(page.get_by_role("table", name="Requests").get_by_role("row")).to_have_count(3)


def _answer(page: Page, column: int) -> Locator:
    return page.get_by_role("region", name=f"Column {column}").get_by_role("group", name="Answer")
