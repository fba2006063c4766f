"""A canary on the real engine that fails while its page is open."""

import asyncio
from pathlib import Path

from playwright.async_api import Browser, Page, expect

from app.demo.train import Demo
from tests.support.browser import sign_in, watched_page
from tests.support.console_pictures import Pictures
from tests.support.console_site import upload
from tests.support.demo_server import DemoRun
from tests.support.server import until
from tests.support.serving import PeftFiles

_TENANT, _ADAPTER = "supply-chain", "stock"
#: The new version stops at the first word of its answers, so they are empty.
_MISTAKE = {"stop": ["Sugar"]}
_CHAT = {
    "model": _ADAPTER,
    "messages": [{"role": "user", "content": "Can you explain sugar?"}],
    "max_tokens": 8,
    "temperature": 0,
}
_ROLLED_BACK_S = 120


async def test_a_rollback_appears_on_the_open_page(
    browser: Browser, demo: DemoRun, trained_demo: Demo, pictures: Pictures
) -> None:
    await asyncio.to_thread(_publish, demo, trained_demo)
    async with watched_page(browser, demo.printed_url) as page:
        await sign_in(page, demo.access.tenants[_TENANT].key)
        await page.get_by_role("link", name=_ADAPTER, exact=True).click()
        await _start_canary(page)
        alias = page.get_by_role("table", name="Aliases").get_by_role("row").filter(has_text="default")
        await expect(alias).to_contain_text("running version 2 against 1")
        await page.evaluate("window.isSamePage = true")
        await asyncio.to_thread(_ask_until_rolled_back, demo)
        await expect(alias).to_contain_text("rolled back version 2 against 1")
        await expect(alias).to_contain_text("requests ended in empty or non-finite answers")
        await expect(alias.get_by_role("cell").nth(1)).to_have_text("version 1")
        await expect(alias.get_by_role("button", name="Cancel the canary")).to_have_count(0)
        assert await page.evaluate("window.isSamePage"), "the page was loaded again"
        await pictures.document(page, "console-canary")


def _publish(demo: DemoRun, trained: Demo) -> None:
    """Publish a good version, and one with a mistake in its defaults that no upload can find."""
    with demo.client(demo.access.admin_key) as admin:
        upload(admin, _TENANT, _ADAPTER, _files(trained.adapters["supply-chain"]), {})
        options = {"alias": None, "defaults": _MISTAKE}
        upload(admin, _TENANT, _ADAPTER, _files(trained.adapters["pricing"]), options)


def _files(folder: Path) -> PeftFiles:
    config, weights = (folder / name for name in ("adapter_config.json", "adapter_model.safetensors"))
    return PeftFiles(config.read_bytes(), weights.read_bytes())


async def _start_canary(page: Page) -> None:
    await page.get_by_role("button", name="Canary default").click()
    await page.get_by_label("New version").select_option("version 2")
    await page.get_by_label("Steps").fill("50% 1h, 100% 1h")
    await page.get_by_role("button", name="Start the canary").click()


def _ask_until_rolled_back(demo: DemoRun) -> None:
    with demo.client(demo.access.tenants[_TENANT].key) as tenant:

        def rolled_back() -> bool:
            answer = tenant.post("/v1/chat/completions", json=_CHAT)
            assert answer.status_code == 200, answer.text
            alias = tenant.get(f"/admin/tenants/{_TENANT}/adapters/{_ADAPTER}/aliases/default")
            return bool(alias.json()["canary"]["state"] == "rolled_back")

        until(rolled_back, _ROLLED_BACK_S)
