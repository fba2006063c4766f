"""Texts that tenants and models write are shown as text: no markup, no script, no link with another scheme."""

import json
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, FilePayload, Page, expect

from tests.support.browser import watched_page
from tests.support.console_site import TENANT, ConsoleSite, make_batch, open_page, upload
from tests.support.serving import PeftFiles, peft_files

#: Each would set ``window.attacked`` if a page took it for markup, code or an address.
CORPUS = (
    "<script>window.attacked=1</script>",
    "<img src=x onerror=window.attacked=1>",
    "<svg onload=window.attacked=1>",
    "\"'><body onpageshow=window.attacked=1>",
    "</textarea><script>window.attacked=1</script>",
    "<iframe srcdoc='<script>parent.attacked=1</script>'></iframe>",
    "javascript:window.attacked=1",
    "{{constructor.constructor('window.attacked=1')()}}",
    "<a href=javascript:window.attacked=1>click</a>",
)
#: Pieces of a model's answer, which may have any character.
_ANSWER = (*CORPUS, "\u202e<b>txet desrever</b>", "\x00")
_ATTACKED = "window.attacked !== undefined"
#: Elements that the console never makes.
_FOREIGN = "script:not([src^='/console/assets/']), iframe, object, embed, main img, main svg, [onerror], [onload]"


@pytest.fixture(scope="module")
def adapter(site: ConsoleSite, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Publish an adapter and make a key and a batch whose texts are the corpus."""
    folder = tmp_path_factory.mktemp("hostile")
    with site.client(site.admin_key) as admin:
        for number, text in enumerate(CORPUS):
            options: dict[str, Any] = {"alias": None, "card": f"{text}\n" * 2, "labels": {"note": text[:200]}}
            upload(admin, TENANT, "hostile", peft_files(folder / str(number), seed=100 + number), options)
            path = f"/admin/tenants/{TENANT}/adapters/hostile/versions/{number + 1}/retire"
            assert admin.post(path, json={"reason": text}).is_success
            body = {"name": f"{text[:40]} {uuid.uuid4().hex[:4]}", "owner": text[:60], "scopes": ["inference"]}
            assert admin.post(f"/admin/tenants/{TENANT}/keys", json=body).is_success
            assert admin.patch(f"/admin/tenants/{TENANT}", json={"name": text[:60]}).is_success
    with site.client(site.key) as tenant:
        make_batch(tenant, {f"note{number}": text for number, text in enumerate(CORPUS)})
        _refuse(tenant, peft_files(folder / "refused", seed=120))
    return "hostile"


def _refuse(tenant: httpx.Client, files: PeftFiles) -> None:
    """Send uploads whose names of files and keys of the config are the corpus; their reasons are kept."""
    config = json.dumps(json.loads(files.config) | {text: text for text in CORPUS})
    for adapter, parts in {
        "hostile-keys": {"adapter_config.json": config.encode(), "adapter_model.safetensors": files.weights},
        "hostile-names": dict.fromkeys(CORPUS, b"x"),
    }.items():
        named = {name: (name, content) for name, content in parts.items()}
        assert tenant.post(f"/v1/adapters/{adapter}/versions", files=named).status_code == 422


@pytest.mark.parametrize("path", ["adapters/hostile", "keys", "batches", "events", "deletions", "shared"])
async def test_pages_of_a_tenant_show_text_as_text(
    browser: Browser, site: ConsoleSite, adapter: str, path: str
) -> None:
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.key, f"/console/t/{TENANT}/{path}")
        await _check(page)
        if path == f"adapters/{adapter}":
            await expect(page.get_by_text(CORPUS[0], exact=True)).to_be_visible()


async def test_versions_show_cards_and_labels_as_text(browser: Browser, site: ConsoleSite, adapter: str) -> None:
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.key, None)
        for number, text in enumerate(CORPUS, 1):
            await page.goto(f"/console/t/{TENANT}/adapters/{adapter}/versions/{number}")
            await expect(page.get_by_text(f"note={text}", exact=True)).to_be_visible()
            await _check(page)


@pytest.mark.parametrize("path", ["", "tenants", f"tenants/{TENANT}", "keys", "usage", "batches", "audit", "events"])
async def test_pages_of_the_platform_show_text_as_text(
    browser: Browser, site: ConsoleSite, adapter: str, path: str
) -> None:
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.admin_key, f"/console/{path}")
        await _check(page)


async def test_the_answer_of_a_model_is_text(browser: Browser, site: ConsoleSite, adapter: str) -> None:
    site.engine.by_model["labels"] = _ANSWER
    try:
        async with watched_page(browser, site.url) as page:
            await open_page(page, site, site.key, f"/console/t/{TENANT}/playground?model=labels")
            await page.get_by_label("Mark the words").check()
            await page.get_by_label("Model 2").fill("labels")
            await page.get_by_label("Prompt", exact=True).fill(CORPUS[1])
            await page.get_by_role("button", name="Ask", exact=True).click()
            for answer in await page.get_by_role("group", name="Answer").all():
                await expect(answer).to_contain_text(CORPUS[1])
            await _check(page)
    finally:
        del site.engine.by_model["labels"]


async def test_reasons_of_a_refusal_are_text(browser: Browser, site: ConsoleSite, adapter: str, tmp_path: Path) -> None:
    files = peft_files(tmp_path / "a", seed=200)
    config = json.loads(files.config) | {text: text for text in CORPUS}
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.key, f"/console/t/{TENANT}/upload")
        chosen: list[FilePayload] = [
            {"name": "adapter_config.json", "mimeType": "application/json", "buffer": json.dumps(config).encode()},
            {"name": "adapter_model.safetensors", "mimeType": "", "buffer": files.weights},
        ]
        await page.get_by_label("The two files, or an archive").set_input_files(chosen)
        await page.get_by_label("Adapter", exact=True).fill("bad")
        await page.get_by_label("Card").fill(CORPUS[0])
        await page.get_by_role("button", name="Upload", exact=True).click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await _check(page)


@pytest.mark.parametrize("refused", ["hostile-keys", "hostile-names"])
async def test_stored_reasons_of_a_refusal_are_text(
    browser: Browser, site: ConsoleSite, adapter: str, refused: str
) -> None:
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.key, f"/console/t/{TENANT}/upload")
        await page.get_by_role("button", name=f"Show the reasons for {refused}").first.click()
        reasons = page.get_by_role("dialog").get_by_role("table", name="Reasons")
        await expect(reasons).to_contain_text(CORPUS[1])
        await _check(page)


@pytest.mark.parametrize("query", ["?model=<script>window.attacked=1</script>", "?model=javascript:window.attacked=1"])
async def test_an_address_is_text(browser: Browser, site: ConsoleSite, adapter: str, query: str) -> None:
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.key, f"/console/t/{TENANT}/playground{query}")
        await expect(page.get_by_label("Model 1")).to_have_value(query.partition("=")[2])
        await _check(page)
        await page.goto(f"/console/t/{TENANT}/adapters/%3Cimg%20src%3Dx%20onerror%3Dwindow.attacked%3D1%3E")
        await _check(page)


async def _check(page: Page) -> None:
    """Wait for the page, and check that nothing in it became markup, code or a link with another scheme."""
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    await expect(page.locator(".loading")).to_have_count(0)
    assert not await page.evaluate(_ATTACKED)
    await expect(page.locator(_FOREIGN)).to_have_count(0)
    links = await page.locator("a[href]").evaluate_all("links => links.map(link => link.protocol)")
    assert set(links) <= {"http:", "https:"}
