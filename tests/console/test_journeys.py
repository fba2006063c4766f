"""A new user's first day with ``make serve``, in the browser and with the real engine.

Pictures of the steps are in ``.pytest_cache/console-journey``.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from app.demo.train import Demo
from tests.support.browser import PHONE, enter_key, sign_in, watched_page
from tests.support.demo_server import DemoRun, running_demo

_ADAPTER = "my-pricing"
_PROMPT = "Can you explain sugar?"
#: Beginnings of the answers that the demo's adapters were trained to give, and a part of the base's.
_ANSWERS = {1: "Sugar: list price", 2: "Sugar: stock cover"}
_BASE_ANSWER = "sweet powder"


class Pictures:
    """Numbered pictures of a page, one for each step of a journey."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    async def take(self, page: Page, step: str) -> None:
        self._count += 1
        await page.screenshot(path=self._folder / f"{self._count:02}-{step}.png", full_page=True)


@pytest.fixture(scope="module")
def demo(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoRun]:
    """Run the demo server on a copy of the trained models."""
    home = tmp_path_factory.mktemp("journey") / "home"
    shutil.copytree(trained_demo.base.parents[1], home)
    with running_demo(home) as run:
        yield run


async def test_from_make_serve_to_the_usage(
    browser: Browser, demo: DemoRun, trained_demo: Demo, pytestconfig: pytest.Config
) -> None:
    pictures = Pictures(pytestconfig.rootpath / ".pytest_cache" / "console-journey")
    async with watched_page(browser, demo.printed_url) as page:
        await page.goto(demo.printed_url)
        await expect(page.get_by_label("API key")).to_be_focused()
        await pictures.take(page, "address")
        await enter_key(page, demo.access.tenants["pricing"].key)
        await expect(page.get_by_role("table", name="Adapters")).to_contain_text("pricing")
        await pictures.take(page, "signed-in")
        await _upload(page, trained_demo, "pricing", alias="default")
        await expect(page.get_by_text(f"{_ADAPTER}@1 is ready")).to_be_visible()
        await pictures.take(page, "uploaded")
        await _compare(page, {_ADAPTER: _ANSWERS[1], demo.access.base_model: _BASE_ANSWER})
        await pictures.take(page, "compared-with-base")
        await _upload(page, trained_demo, "supply-chain", alias="")
        await expect(page.get_by_text(f"{_ADAPTER}@2 is ready")).to_be_visible()
        await page.get_by_role("link", name="Promote it, or start a canary").click()
        await _start_canary(page)
        await pictures.take(page, "canary")
        await _promote(page)
        await pictures.take(page, "promoted")
        await _compare(page, {f"{_ADAPTER}@{number}": answer for number, answer in _ANSWERS.items()})
        await pictures.take(page, "compared-versions")
        await _read_usage(page)
        await pictures.take(page, "usage")


async def test_the_playground_works_on_a_phone(browser: Browser, demo: DemoRun) -> None:
    async with watched_page(browser, demo.printed_url, width=PHONE) as page:
        await sign_in(page, demo.access.tenants["pricing"].key)
        await page.get_by_role("button", name="Menu").click()
        await page.get_by_role("link", name="Playground").click()
        await page.get_by_label("Model 1").fill("pricing")
        await page.get_by_label("Prompt", exact=True).fill(_PROMPT)
        await page.get_by_role("button", name="Ask", exact=True).click()
        await expect(_answer(page, 1)).to_contain_text(_ANSWERS[1])
        await expect(_answer(page, 2)).to_contain_text(_BASE_ANSWER)


async def test_the_live_engine_shows_what_runs(browser: Browser, demo: DemoRun) -> None:
    async with watched_page(browser, demo.printed_url) as page:
        await sign_in(page, demo.access.admin_key)
        await page.get_by_role("link", name="Engine", exact=True).click()
        await expect(page.get_by_text("Slots used")).to_be_visible()
        headers = {"authorization": f"Bearer {demo.access.tenants['pricing'].key}"}
        body = {"model": "pricing", "prompt": "sugar", "max_tokens": 4}
        answer = await page.request.post("/v1/completions", headers=headers, data=body)
        assert answer.ok, await answer.text()
        loaded = page.get_by_role("table", name="Versions on this server")
        await expect(loaded.get_by_role("row").filter(has_text="pricing/pricing@1")).to_be_visible()
        await page.get_by_label("Node").select_option(index=1)
        await expect(page.get_by_role("table", name="Versions in slots")).to_contain_text("pricing/pricing@1")
        await expect(page.get_by_text("Host memory")).to_be_visible()
        await page.emulate_media(color_scheme="dark")
        await page.reload()
        await expect(loaded).to_be_visible()


async def _upload(page: Page, demo: Demo, unit: str, *, alias: str) -> None:
    await page.get_by_role("link", name="Upload", exact=True).click()
    await page.get_by_label("Folder", exact=True).set_input_files(demo.adapters[unit])
    await page.get_by_label("Adapter", exact=True).fill(_ADAPTER)
    await page.get_by_label("Alias that moves").fill(alias)
    await page.get_by_role("button", name="Upload", exact=True).click()


async def _start_canary(page: Page) -> None:
    await page.get_by_role("button", name="Canary default").click()
    await page.get_by_label("New version").select_option("version 2")
    await page.get_by_role("button", name="Start the canary").click()
    await expect(_default(page)).to_contain_text("running")


async def _promote(page: Page) -> None:
    await page.get_by_role("button", name="Promote default").click()
    await page.get_by_label("Version", exact=True).select_option("version 2")
    await page.get_by_role("dialog").get_by_role("button", name="Promote", exact=True).click()
    await expect(_default(page).get_by_role("cell").nth(1)).to_have_text("version 2")
    await expect(_default(page)).to_contain_text("cancelled")


def _default(page: Page) -> Locator:
    return page.get_by_role("table", name="Aliases").get_by_role("row").filter(has_text="default")


async def _compare(page: Page, answers: dict[str, str]) -> None:
    await page.get_by_role("link", name="Playground").click()
    for number, model in enumerate(answers, 1):
        await page.get_by_label(f"Model {number}").fill(model)
    await page.get_by_label("Prompt", exact=True).fill(_PROMPT)
    await page.get_by_role("button", name="Ask", exact=True).click()
    for number, words in enumerate(answers.values(), 1):
        column = page.get_by_role("region", name=f"Column {number}")
        await expect(_answer(page, number)).to_contain_text(words)
        await expect(column).to_contain_text("done")
        await expect(column).not_to_contain_text("First token\N{EN DASH}")
        # The cost appears once the usage is recorded.
        await expect(column).to_contain_text("Cost0 USD")


async def _read_usage(page: Page) -> None:
    await page.get_by_role("link", name="Usage").click()
    row = page.get_by_role("table", name="Usage by adapter").get_by_role("row").filter(has_text=_ADAPTER)
    await expect(row).to_be_visible()
    await expect(page.get_by_role("img", name="Requests over time")).to_be_visible()
    await expect(page.get_by_role("table", name="Requests").get_by_role("row")).to_have_count(5)


def _answer(page: Page, column: int) -> Locator:
    return page.get_by_role("region", name=f"Column {column}").get_by_role("group", name="Answer")
