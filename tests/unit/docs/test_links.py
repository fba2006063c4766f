"""Links between pages lead somewhere: relative files, headings, and pages that the code names."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.pages import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
NAMED = re.compile(r"(?<![\w/.-])((?:docs|deploy)/[\w./-]*\w\.(?:md|py|sh|yml|conf|txt|json|toml))")


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        names.add(f"{anchor}-{found[anchor]}" if anchor in found else anchor)
        found[anchor] = found.get(anchor, 0) + 1
    return names


def broken(page: Path, link: str) -> bool:
    if re.match(r"\w+:", link):
        return False
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    return not target.exists() or bool(anchor and target.suffix == ".md" and anchor not in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = CODE.sub("", page.read_text())
    assert [link for link in LINK.findall(text) if broken(page, link)] == []


def test_the_files_that_the_code_names_exist() -> None:
    missing = []
    for folder in ("app", "adapters", "migrations", "tests", "deploy"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.parent.name not in ("docs", "lint"):
                missing += [(str(path), name) for name in NAMED.findall(path.read_text()) if not (ROOT / name).exists()]
    assert missing == []
