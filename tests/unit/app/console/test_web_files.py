"""Source and build of the console: no way from a text to markup or code, no other origin, a small script."""

import gzip
import json
import re
from pathlib import Path

import pytest

from app.console.assets import STATIC

SOURCE = STATIC.parent / "web"
#: Most bytes of JavaScript, compressed as they are sent.
MOST_SCRIPT_BYTES = 150_000
#: Ways from a text to markup, code or a request that the policy would have to allow.
_FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|dangerouslySetInnerHTML|insertAdjacentHTML|createContextualFragment|srcdoc|document\.write"
    r"|\beval\b|new Function|DOMParser|javascript:|setTimeout\(\s*[\"'`]|https?://(?!\$)[a-z]"
)
#: Names of other origins that are no addresses to call: a namespace, and an example in a comment.
_HARMLESS = ("http://www.w3.org/2000/svg",)


def _sources() -> list[Path]:
    return [path for path in (SOURCE / "src").rglob("*") if path.is_file()] + [SOURCE / "index.html"]


@pytest.mark.parametrize("path", _sources(), ids=lambda path: path.name)
def test_source_makes_no_markup_or_code_from_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for harmless in _HARMLESS:
        text = text.replace(harmless, "")
    assert _FORBIDDEN.findall(text) == []


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert "<style" not in page
    assert re.findall(r"\s(?:style|on\w+)=", page) == []
    addresses = re.findall(r"(?:src|href)=\"([^\"]*)\"", page)
    assert addresses
    assert all(address.startswith("/console/assets/") for address in addresses)


def test_every_file_of_the_page_is_in_the_build() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    for address in re.findall(r"/console/(assets/[^\"]*)", page):
        assert (STATIC / address).is_file(), address


def test_the_script_is_small() -> None:
    scripts = [path.read_bytes() for path in STATIC.rglob("*.js")]
    assert scripts
    assert sum(len(gzip.compress(script)) for script in scripts) <= MOST_SCRIPT_BYTES


def test_every_package_in_the_scripts_has_its_notice() -> None:
    packages = json.loads((SOURCE / "package.json").read_text(encoding="utf-8"))["dependencies"]
    notices = (STATIC / "licenses.md").read_text(encoding="utf-8")
    for name, version in packages.items():
        assert f"\n## {name} - {version} (" in notices, name
