"""Uploads in the browser: a folder, an archive, parts, and every reason for which an adapter is refused."""

import io
import shutil
import zipfile
from pathlib import Path

import pytest
from playwright.async_api import Browser, FilePayload, Locator, Page, expect

from tests.support.bad_adapters import BAD
from tests.support.browser import watched_page
from tests.support.console_site import TENANT, ConsoleSite, folder_of, open_page
from tests.support.serving import peft_files

_UPLOAD = f"/console/t/{TENANT}/upload"
#: One bad adapter for each reason.
_BAD_BY_CODE = {bad.code: name for name, bad in BAD.items()}


async def test_a_folder_becomes_a_version(browser: Browser, site: ConsoleSite, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", peft_files(tmp_path / "b", seed=21))
    (folder / "README.md").write_text("unused")
    async with watched_page(browser, site.url) as page:
        await _open(page, site)
        await page.get_by_label("Folder", exact=True).set_input_files(folder)
        await expect(page.get_by_text("not used: README.md")).to_be_visible()
        await page.get_by_label("Adapter", exact=True).fill("from-folder")
        await page.get_by_label("Labels").fill("team=pricing, data=2026-11")
        await page.get_by_role("button", name="Upload", exact=True).click()
        await expect(page.get_by_text("from-folder@1 is ready")).to_be_visible()
        await page.get_by_role("link", name="Show the version").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("from-folder@1")
        await expect(page.get_by_text("data=2026-11")).to_be_visible()


async def test_an_archive_becomes_a_version(browser: Browser, site: ConsoleSite, tmp_path: Path) -> None:
    files = peft_files(tmp_path / "a", seed=22)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("adapter_config.json", files.config)
        archive.writestr("adapter_model.safetensors", files.weights)
    file: FilePayload = {"name": "adapter.zip", "mimeType": "application/zip", "buffer": packed.getvalue()}
    async with watched_page(browser, site.url) as page:
        await _open(page, site)
        await page.get_by_label("The two files, or an archive").set_input_files(file)
        await page.get_by_label("Adapter", exact=True).fill("from-archive")
        await page.get_by_role("button", name="Upload", exact=True).click()
        await expect(page.get_by_text("from-archive@1 is ready")).to_be_visible()


async def test_an_interrupted_upload_in_parts_goes_on(browser: Browser, site: ConsoleSite, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", peft_files(tmp_path / "b", seed=23))
    async with watched_page(browser, site.url) as page:
        await _open(page, site)
        await page.route("**/files/adapter_model.safetensors/parts/*", lambda route: route.abort())
        async with page.expect_response("**/files/adapter_config.json/parts/1"):
            await _send_in_parts(page, folder)
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_text("You stopped the upload.")).to_be_visible()
        await page.unroute_all()
        sent: list[str] = []
        page.on("request", lambda request: sent.append(f"{request.method} {request.url}"))
        await page.goto(_UPLOAD)
        await _send_in_parts(page, folder)
        await expect(page.get_by_text("in-parts@1 is ready")).to_be_visible()
    begun = [call for call in sent if call.startswith("POST") and call.endswith("/uploads")]
    assert begun == [], "a second upload began"
    parts = [call.rpartition("/files/")[2] for call in sent if call.startswith("PUT")]
    assert parts == ["adapter_model.safetensors/parts/1"], "a part was sent twice"


async def test_every_reason_is_shown_at_once(browser: Browser, site: ConsoleSite, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", peft_files(tmp_path / "b", seed=24))
    for name in ("feature use_dora", "unknown key", "no alpha", "layer out of range"):
        BAD[name].change(folder)
    async with watched_page(browser, site.url) as page:
        await _open(page, site)
        await _refuse(page, folder)
        for code in ("unsupported_feature", "unknown_key", "invalid_value", "layer_out_of_range"):
            await expect(_reasons(page).get_by_text(code, exact=True)).to_be_visible()


async def test_a_refusal_can_be_read_later(browser: Browser, site: ConsoleSite, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", peft_files(tmp_path / "b", seed=27))
    # Only the values are wrong, so the weights are sent.
    BAD["NaN"].change(folder)
    async with watched_page(browser, site.url) as page:
        await _open(page, site)
        await _refuse(page, folder)
        await page.reload()
        await page.get_by_role("button", name="Show the reasons for bad").first.click()
        await expect(page.get_by_role("dialog").get_by_text("non_finite", exact=True)).to_be_visible()


async def test_each_reason_of_a_refusal_is_shown(browser: Browser, site: ConsoleSite, tmp_path: Path) -> None:
    good = folder_of(tmp_path / "good", peft_files(tmp_path / "b", seed=25))
    async with watched_page(browser, site.url) as page:
        await _open(page, site)
        for code, name in _BAD_BY_CODE.items():
            folder = tmp_path / "bad"
            shutil.copytree(good, folder)
            BAD[name].change(folder)
            await _refuse(page, folder)
            await expect(_reasons(page).get_by_text(code, exact=True).first, name).to_be_visible()
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("README.md",), "file_missing"),
        (("adapter_config.json",), "file_missing"),
        (("adapter_config.json", "adapter_model.bin"), "pickle_format"),
        (("a/adapter_config.json", "b/adapter_config.json"), "several_adapters"),
    ],
)
async def test_a_folder_without_one_adapter_is_refused(
    browser: Browser, site: ConsoleSite, tmp_path: Path, names: tuple[str, ...], words: str
) -> None:
    for name in names:
        path = tmp_path / "chosen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    async with watched_page(browser, site.url) as page:
        await _open(page, site)
        await page.get_by_label("Folder", exact=True).set_input_files(tmp_path / "chosen")
        await expect(page.get_by_role("alert").get_by_text(words, exact=True)).to_be_visible()
        await page.get_by_label("Adapter", exact=True).fill("anything")
        await expect(page.get_by_role("button", name="Upload", exact=True)).to_be_disabled()


async def test_a_failed_smoke_check_is_shown(browser: Browser, site: ConsoleSite, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", peft_files(tmp_path / "b", seed=26))
    before, site.engine.smoke_result = site.engine.smoke_result, site.engine.without_effect
    try:
        async with watched_page(browser, site.url) as page:
            await _open(page, site)
            await _refuse(page, folder)
            await expect(page.get_by_role("alert")).to_contain_text("Rejected")
    finally:
        site.engine.smoke_result = before


async def _open(page: Page, site: ConsoleSite) -> None:
    await open_page(page, site, site.key, _UPLOAD)


async def _refuse(page: Page, folder: Path) -> None:
    """Upload a folder that is refused, and wait for the refusal."""
    await page.get_by_label("Folder", exact=True).set_input_files(folder)
    await page.get_by_label("Adapter", exact=True).fill("bad")
    await page.get_by_role("button", name="Upload", exact=True).click()
    await expect(page.get_by_role("button", name="Upload", exact=True)).to_be_enabled()
    await expect(page.get_by_role("alert")).to_be_visible()


def _reasons(page: Page) -> Locator:
    return page.get_by_role("alert").get_by_role("table", name="Reasons")


async def _send_in_parts(page: Page, folder: Path) -> None:
    await page.get_by_label("Folder", exact=True).set_input_files(folder)
    await page.get_by_label("Adapter", exact=True).fill("in-parts")
    await page.get_by_label("Send in parts").check()
    await page.get_by_role("button", name="Upload", exact=True).click()
