"""Every page, on a phone and on a laptop, in light and dark: no barrier that axe finds, no sideways scroll.

The browser's watch also fails each test on a violation of the policy, an error, or a request to another origin. A
tenant's own key asks for nothing under ``/admin``.
"""

from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, Request, expect

from tests.support.browser import LAPTOP, PHONE, accessibility_violations, is_wider_than_window, watched_page
from tests.support.console_site import TENANT, ConsoleSite, open_page

_TENANT_PAGES = {
    "adapters": "Adapters",
    "adapters/quotes": "quotes",
    "adapters/quotes/versions/1": "quotes@1",
    "upload": "Upload an adapter",
    "playground": "Playground",
    "batches": "Batches",
    "usage": "Usage",
    "keys": "Keys",
    "limits": "Limits and quota",
    "shared": "Shared with this tenant",
    "deletions": "Deletions",
    "events": "Events",
}
_PLATFORM_PAGES = {
    "": "Overview",
    "tenants": "Tenants",
    f"tenants/{TENANT}": TENANT,
    "keys": "Keys",
    "usage": "Usage and cost",
    "prices": "Prices",
    "engine": "Engine",
    "canaries": "Canaries",
    "batches": "Batches",
    "deletions": "Deletions",
    "audit": "Audit",
    "events": "Events",
}
_WIDTHS = (PHONE, LAPTOP)


@pytest.mark.parametrize("width", _WIDTHS)
async def test_the_sign_in_page_has_no_barrier(browser: Browser, site: ConsoleSite, axe: str, width: int) -> None:
    async with watched_page(browser, site.url, width=width) as page:
        await page.goto("/console")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in to Tenora")
        assert await _problems(page, axe) == []


@pytest.mark.parametrize("width", _WIDTHS)
async def test_no_page_of_a_tenant_has_a_barrier(browser: Browser, site: ConsoleSite, axe: str, width: int) -> None:
    await _check_pages(browser, site, site.key, _pages_of_the_tenant(), axe, width)


@pytest.mark.parametrize("width", _WIDTHS)
async def test_no_page_of_the_platform_has_a_barrier(browser: Browser, site: ConsoleSite, axe: str, width: int) -> None:
    # A tenant's pages have a few more buttons for a platform key.
    pages = {f"/console/{path}": title for path, title in _PLATFORM_PAGES.items()} | _pages_of_the_tenant()
    await _check_pages(browser, site, site.admin_key, pages, axe, width)


def _pages_of_the_tenant() -> dict[str, str]:
    return {f"/console/t/{TENANT}/{path}": title for path, title in _TENANT_PAGES.items()}


async def _check_pages(
    browser: Browser, site: ConsoleSite, key: str, pages: dict[str, str], axe: str, width: int
) -> None:
    problems: list[str] = []

    def check_call(request: Request) -> None:
        # A proxy for clients outside hides all of /admin.
        if key == site.key and urlsplit(request.url).path.startswith("/admin"):
            problems.append(f"asks for {request.url}")

    async with watched_page(browser, site.url, width=width) as page:
        page.on("request", check_call)
        await open_page(page, site, key, None)
        for path, title in pages.items():
            await page.goto(path)
            await expect(page.get_by_role("heading", level=1)).to_have_text(title)
            await expect(page.locator(".loading")).to_have_count(0)
            problems += [f"{path}: {problem}" for problem in await _problems(page, axe)]
    assert problems == []


async def _problems(page: Page, axe: str) -> list[str]:
    wide = ["scrolls sideways"] if await is_wider_than_window(page) else []
    return wide + await accessibility_violations(page, axe)
