"""One browser, and one site with a fake engine, for all tests of the console's pages."""

from collections.abc import AsyncIterator, Iterator

import pytest
from playwright.async_api import Browser

from deploy.console.build import PACKAGES
from tests.support.browser import chromium
from tests.support.console_site import ConsoleSite, console_site


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleSite]:
    with console_site(tmp_path_factory.mktemp("console")) as site:
        yield site


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the script of axe, which finds barriers for people with disabilities."""
    return (PACKAGES / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
