"""A new user's first day with ``make serve``, in the browser and with the real engine.

Pictures of the steps are in ``.pytest_cache/console-journey``.
"""

import json
import shutil
import socket
from pathlib import Path

import httpx
from playwright.async_api import Browser, Locator, Page, Route, expect

from app.demo.train import Demo
from tests.support.browser import PHONE, enter_key, sign_in, watched_page
from tests.support.console_pictures import Pictures
from tests.support.demo_server import DemoRun

_ADAPTER = "my-pricing"
_PROMPT = "Can you explain sugar?"
#: Beginnings of the answers that the demo's adapters were trained to give, and a part of the base's.
_ANSWERS = {1: "Sugar: list price", 2: "Sugar: stock cover"}
_BASE_ANSWER = "sweet powder"
#: Request that runs while a test looks at the engine. It ends when the test closes the connection.
_LONG = {"model": "supply-chain", "prompt": "sugar", "max_tokens": 1900, "ignore_eos": True, "stream": True}
#: Route of the live engine, and its answers until the chart has a line.
_ENGINE, _SAMPLES = "**/admin/engine", 3
#: Values in an adapter's config that the server refuses.
_REFUSED = {"use_dora": True, "bias": "all", "modules_to_save": ["lm_head"]}


async def test_from_make_serve_to_the_usage(
    browser: Browser, demo: DemoRun, trained_demo: Demo, pictures: Pictures
) -> None:
    async with watched_page(browser, demo.printed_url) as page:
        await page.goto(demo.printed_url)
        await expect(page.get_by_label("API key")).to_be_focused()
        await pictures.step(page, "address")
        await enter_key(page, demo.access.tenants["pricing"].key)
        await expect(page.get_by_role("table", name="Adapters")).to_contain_text("pricing")
        await pictures.step(page, "signed-in")
        await _upload(page, trained_demo, "pricing", alias="default")
        await expect(page.get_by_text(f"{_ADAPTER}@1 is ready")).to_be_visible()
        await pictures.step(page, "uploaded")
        await _compare(page, {_ADAPTER: _ANSWERS[1], demo.access.base_model: _BASE_ANSWER})
        await pictures.step(page, "compared-with-base")
        await pictures.document(page, "console-playground", down_to=page.get_by_role("region", name="Column 1"))
        await _upload(page, trained_demo, "supply-chain", alias="")
        await expect(page.get_by_text(f"{_ADAPTER}@2 is ready")).to_be_visible()
        await page.get_by_role("link", name="Promote it, or start a canary").click()
        await _start_canary(page)
        await pictures.step(page, "canary")
        await _promote(page)
        await pictures.step(page, "promoted")
        await _compare(page, {f"{_ADAPTER}@{number}": answer for number, answer in _ANSWERS.items()})
        await pictures.step(page, "compared-versions")
        await _read_usage(page)
        await pictures.step(page, "usage")


async def test_the_playground_works_on_a_phone(browser: Browser, demo: DemoRun) -> None:
    async with watched_page(browser, demo.printed_url, width=PHONE) as page:
        await sign_in(page, demo.access.tenants["supply-chain"].key)
        await page.get_by_role("button", name="Menu").click()
        await page.get_by_role("link", name="Playground").click()
        await page.get_by_label("Model 1").fill("supply-chain")
        await page.get_by_label("Prompt", exact=True).fill(_PROMPT)
        await page.get_by_role("button", name="Ask", exact=True).click()
        await expect(_answer(page, 1)).to_contain_text(_ANSWERS[2])
        await expect(_answer(page, 2)).to_contain_text(_BASE_ANSWER)
        for number in (1, 2):
            await expect(page.get_by_role("region", name=f"Column {number}")).to_contain_text("done")


async def test_a_refusal_lists_every_reason(
    browser: Browser, demo: DemoRun, trained_demo: Demo, pictures: Pictures, tmp_path: Path
) -> None:
    folder = shutil.copytree(trained_demo.adapters["supply-chain"], tmp_path / "quotes")
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | _REFUSED))
    async with watched_page(browser, demo.printed_url) as page:
        await sign_in(page, demo.access.tenants["supply-chain"].key)
        await page.get_by_role("link", name="Upload", exact=True).click()
        await page.get_by_label("Folder", exact=True).set_input_files(folder)
        await page.get_by_label("Adapter", exact=True).fill("quotes")
        await page.get_by_role("button", name="Upload", exact=True).click()
        reasons = page.get_by_role("alert").get_by_role("table", name="Reasons")
        for words in _REFUSED:
            await expect(reasons).to_contain_text(words)
        await pictures.document(page, "console-refusal", down_to=page.get_by_role("alert"))


async def test_the_live_engine_shows_what_runs(browser: Browser, demo: DemoRun, pictures: Pictures) -> None:
    headers = {"authorization": f"Bearer {demo.access.tenants['supply-chain'].key}"}
    async with (
        httpx.AsyncClient(base_url=demo.printed_url, headers=headers, timeout=120, trust_env=False) as tenant,
        tenant.stream("POST", "/v1/completions", json=_LONG),
        watched_page(browser, demo.printed_url) as page,
    ):
        await sign_in(page, demo.access.admin_key)
        await page.get_by_role("link", name="Engine", exact=True).click()
        running = page.get_by_role("term").filter(has_text="Running").locator("xpath=following-sibling::dd")
        await expect(running).to_have_text("1")
        version = "supply-chain/supply-chain@1"
        loaded = page.get_by_role("table", name="Versions on this server")
        await expect(loaded.get_by_role("row").filter(has_text=version)).to_be_visible()
        await page.get_by_label("Node").select_option(index=1)
        await expect(page.get_by_role("table", name="Versions in slots")).to_contain_text(version)
        await expect(page.get_by_text("Host memory")).to_be_visible()
        await page.emulate_media(color_scheme="dark")
        await page.route(_ENGINE, _without_host_name)
        await page.reload()
        await expect(loaded).to_be_visible()
        for _ in range(_SAMPLES):
            async with page.expect_response(_ENGINE):
                pass
        await pictures.document(page, "console-engine")


async def _without_host_name(route: Route) -> None:
    """Replace the name of this machine, which is no part of a picture."""
    response = await route.fetch(headers=route.request.headers | {"sec-fetch-site": "same-origin"})
    body = (await response.text()).replace(socket.gethostname(), "server-1")
    await route.fulfill(response=response, body=body)


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
        await expect(column).to_contain_text("done")
        await expect(_answer(page, number)).to_contain_text(words)
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
