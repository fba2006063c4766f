"""Pictures of the console's pages: the steps of a journey, and the pictures in docs/console.md."""

import shutil
from pathlib import Path

from playwright.async_api import Locator, Page

from tests.support.browser import LAPTOP

#: Pictures in docs/console.md.
PICTURES = ("console-playground", "console-refusal", "console-canary", "console-usage", "console-engine")
#: Their folder, their size in pixels, and the longest file there.
FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
WIDTH, HEIGHT, MAX_BYTES = LAPTOP, 660, 120_000


class Pictures:
    """Pictures that the journeys take.

    Args:
        steps: folder of numbered pictures of whole pages.
        documented: folder of the pictures in docs/console.md.

    Attributes:
        taken: names of the pictures in docs/console.md that were taken.
    """

    def __init__(self, steps: Path, documented: Path) -> None:
        self._steps, self._documented, self._count = steps, documented, 0
        self.taken: set[str] = set()
        shutil.rmtree(steps, ignore_errors=True)
        for folder in (steps, documented):
            folder.mkdir(parents=True, exist_ok=True)

    async def step(self, page: Page, name: str) -> None:
        """Take a numbered picture of the whole page."""
        self._count += 1
        await page.screenshot(path=self._steps / f"{self._count:02}-{name}.png", full_page=True)

    async def document(self, page: Page, name: str, *, down_to: Locator | None = None) -> None:
        """Take a picture of the window for the documentation.

        Args:
            down_to: element at whose end the picture ends. Default: the picture has the top of the page.
        """
        assert name in PICTURES
        self.taken.add(name)
        before = page.viewport_size
        await page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        if down_to is not None:
            await down_to.evaluate("element => element.scrollIntoView({ block: 'end' })")
        await page.screenshot(path=self._documented / f"{name}.png", scale="css", animations="disabled")
        if before is not None:
            await page.set_viewport_size(before)
