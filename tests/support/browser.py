"""Chromium of Debian for tests of the console: it watches every page for what must not happen."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, async_playwright, expect

#: The phone of the design, and a laptop.
PHONE, LAPTOP = 390, 1280
_OPTIONS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
#: Longest wait of an expectation. It only bounds a failure.
_EXPECT_MS = 30_000
#: Rules of axe about colours.
_COLOUR_RULES = ("color-contrast", "link-in-text-block")
#: Runs axe with these rules, or with all.
_AXE = """
    async (rules) => {
        const only = rules === null ? {} : { runOnly: { type: "rule", values: rules } };
        const { violations } = await axe.run(document, { resultTypes: ["violations"], ...only });
        const scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
        const shown = (id, { html }) => `${id} in ${scheme}: ${html.slice(0, 200)}`;
        return violations.flatMap(({ id, nodes }) => nodes.map((node) => shown(id, node)));
    }
"""
#: The browser reports each answer that is no success, and each broken connection. Pages handle them.
_HANDLED = "Failed to load resource:"


@dataclass
class Watch:
    """Everything that went wrong on the pages of a context.

    Attributes:
        origin: the only origin that pages may call.
    """

    origin: str
    found: list[str] = field(default_factory=list)

    def attach(self, context: BrowserContext) -> None:
        context.on("console", self._console)
        context.on("weberror", lambda error: self.found.append(f"error: {error.error}"))
        context.on("request", self._request)
        context.on("dialog", lambda dialog: self.found.append(f"dialog: {dialog.message}"))

    def _console(self, message: ConsoleMessage) -> None:
        # A violation of the policy is an error in the console too.
        if message.type in ("error", "warning") and not message.text.startswith(_HANDLED):
            self.found.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", "blob:")):
            self.found.append(f"request: {request.url}")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start the browser.

    Raises:
        AssertionError: it is not installed; ``deploy/ci/prepare.sh`` installs it.
    """
    executable = shutil.which("chromium")
    assert executable, "chromium is missing: run deploy/ci/prepare.sh"
    expect.set_options(timeout=_EXPECT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=_OPTIONS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def watched_page(browser: Browser, url: str, *, width: int = LAPTOP, **options: Any) -> AsyncIterator[Page]:
    """Open a page in a fresh profile, and fail if anything went wrong on it.

    An error of the block gets a note with what the page shows.
    """
    context = await browser.new_context(base_url=url, viewport={"width": width, "height": 900}, **options)
    context.set_default_timeout(_EXPECT_MS)
    watch = Watch(url)
    watch.attach(context)
    try:
        page = await context.new_page()
        try:
            yield page
        except Exception as error:
            error.add_note(await page.locator("body").aria_snapshot())
            raise
    finally:
        await context.close()
    assert not watch.found, watch.found


async def sign_in(page: Page, key: str) -> None:
    """Sign in with a key, and wait for the first page."""
    await page.goto("/console")
    await enter_key(page, key)


async def enter_key(page: Page, key: str) -> None:
    """Enter a key into the sign-in page, and wait for the first page."""
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("banner")).to_be_visible()


async def is_wider_than_window(page: Page) -> bool:
    """Return whether the page scrolls sideways."""
    return bool(await page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


async def accessibility_violations(page: Page, axe: str) -> list[str]:
    """Run axe on the page in light and in dark, and return its findings.

    Only colours differ in dark, so only the rules about them run again.

    Args:
        axe: its script.
    """
    await page.evaluate(f"{axe};0")
    await page.emulate_media(color_scheme="light")
    found: list[str] = await page.evaluate(_AXE, None)
    await page.emulate_media(color_scheme="dark")
    return [*found, *await page.evaluate(_AXE, _COLOUR_RULES)]
