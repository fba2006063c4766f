"""Rollout in the browser: promote, split, canary, rollback, retire, pin, share and delete."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.support.browser import watched_page
from tests.support.console_site import OTHER, TENANT, ConsoleSite, open_page, upload
from tests.support.serving import peft_files

_NUMBERS = count(1)


@pytest.fixture(scope="module")
def adapter(site: ConsoleSite, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Publish an adapter with three versions. Each test that moves an alias has another one."""
    return _publish(site, "rollout", tmp_path_factory.mktemp("rollout"), first_seed=31)


@pytest.fixture
def alias(site: ConsoleSite, adapter: str) -> Iterator[str]:
    """Make an alias of the first version, which holds no version back after the test."""
    name = f"alias-{next(_NUMBERS)}"
    _move(site, adapter, name, 1)
    yield name
    with site.client(site.admin_key) as admin:
        assert admin.delete(f"/admin/tenants/{TENANT}/adapters/{adapter}/aliases/{name}").is_success


async def test_promote_split_and_roll_back(browser: Browser, site: ConsoleSite, adapter: str, alias: str) -> None:
    async with watched_page(browser, site.url) as page:
        await _open(page, site, adapter)
        await _act(page, alias, "Promote")
        await page.get_by_label("Version", exact=True).select_option("version 3")
        await _submit(page, "Promote")
        await expect(_alias(page, alias)).to_contain_text("version 3")
        await _act(page, alias, "Split")
        await page.get_by_label("Weight of version 3").fill("95")
        await page.get_by_label("Weight of version 2").fill("5")
        await _submit(page, "Split the traffic")
        await expect(_alias(page, alias)).to_contain_text("version 2: 5%, version 3: 95%")
        await _act(page, alias, "Roll back")
        await expect(page.get_by_role("dialog").get_by_role("table")).to_contain_text("split")
        await _submit(page, "Roll back")
        await expect(_alias(page, alias)).to_contain_text("version 3")
        await expect(_alias(page, alias)).not_to_contain_text("%")


async def test_a_canary_starts_and_is_cancelled(browser: Browser, site: ConsoleSite, adapter: str, alias: str) -> None:
    async with watched_page(browser, site.url) as page:
        await _open(page, site, adapter)
        await _act(page, alias, "Canary")
        await page.get_by_label("New version").select_option("version 2")
        await page.get_by_label("Steps").fill("10% 60s, 100% 1h")
        await _submit(page, "Start the canary")
        await expect(_alias(page, alias)).to_contain_text("version 2 against 1, step 1 of 2")
        await page.get_by_role("button", name=f"Cancel the canary of {alias}").click()
        await expect(_alias(page, alias)).to_contain_text("cancelled")


async def test_a_change_on_old_data_is_refused(browser: Browser, site: ConsoleSite, adapter: str, alias: str) -> None:
    async with watched_page(browser, site.url) as page:
        await _open(page, site, adapter)
        # The page must not learn of the change: it has no events, and the dialog is open already.
        await _act(page, alias, "Promote")
        _move(site, adapter, alias, 2)
        await page.get_by_role("dialog").get_by_role("button", name="Promote").click()
        await expect(page.get_by_role("alert")).to_contain_text("Changed by another user")


async def test_a_version_is_retired_and_restored(browser: Browser, site: ConsoleSite, adapter: str) -> None:
    async with watched_page(browser, site.url) as page:
        await _open(page, site, adapter)
        await page.get_by_role("button", name=f"Retire {adapter}@2").click()
        await page.get_by_label("Reason").fill("Worse than version 1.")
        await _submit(page, "Retire the version")
        await expect(_version(page, adapter, 2)).to_contain_text("Worse than version 1.")
        await page.get_by_role("button", name=f"Restore {adapter}@2").click()
        await expect(_version(page, adapter, 2)).to_contain_text("ready")


async def test_a_version_is_pinned_and_unpinned(browser: Browser, site: ConsoleSite, adapter: str) -> None:
    async with watched_page(browser, site.url) as page:
        # A tenant may pin within its quota only, the platform always.
        await _open(page, site, adapter, site.admin_key)
        await page.get_by_role("button", name=f"Pin {adapter}@1").click()
        await expect(_version(page, adapter, 1)).to_contain_text("pinned")
        await expect(_version(page, adapter, 2)).not_to_contain_text("pinned")
        await page.get_by_role("button", name=f"Unpin {adapter}@1").click()
        await expect(_version(page, adapter, 1)).not_to_contain_text("pinned")


async def test_a_share_begins_and_ends(browser: Browser, site: ConsoleSite, adapter: str) -> None:
    async with watched_page(browser, site.url) as page:
        await _open(page, site, adapter)
        await page.get_by_label("Share with the tenant").fill(OTHER)
        await page.get_by_role("button", name="Share", exact=True).click()
        await page.get_by_role("button", name=f"End the share with {OTHER}").click()
        await expect(page.get_by_text("No other tenant.")).to_be_visible()


async def test_a_deletion_asks_for_the_name_and_is_proved(browser: Browser, site: ConsoleSite, tmp_path: Path) -> None:
    adapter = _publish(site, "deleted-by-click", tmp_path, first_seed=41)
    async with watched_page(browser, site.url) as page:
        await _open(page, site, adapter)
        await page.get_by_role("button", name="Delete…", exact=True).first.click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("3 versions")
        button = dialog.get_by_role("button", name="Delete the adapter")
        await expect(button).to_be_disabled()
        await dialog.get_by_label("Type").fill(adapter)
        await button.click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Deletions")
        await page.get_by_role("button", name=f"Proof for {adapter}").click()
        proof = page.get_by_role("dialog", name=f"Proof: {adapter}")
        await expect(proof).to_be_visible()
        digest = _digest(site, adapter)
        await expect(proof).to_contain_text(digest)


def _publish(site: ConsoleSite, adapter: str, folder: Path, *, first_seed: int) -> str:
    """Publish three versions, and return the adapter's name."""
    with site.client(site.admin_key) as admin:
        for seed in range(first_seed, first_seed + 3):
            options = {"alias": "default" if seed == first_seed else None}
            upload(admin, TENANT, adapter, peft_files(folder / str(seed), seed=seed), options)
    return adapter


def _move(site: ConsoleSite, adapter: str, alias: str, version: int) -> None:
    with site.client(site.admin_key) as admin:
        path = f"/admin/tenants/{TENANT}/adapters/{adapter}/aliases/{alias}"
        assert admin.put(path, json={"version": version}).is_success


def _digest(site: ConsoleSite, adapter: str) -> str:
    with site.client(site.admin_key) as admin:
        rows = admin.get(f"/admin/tenants/{TENANT}/deletions").json()["data"]
    (row,) = [row for row in rows if row["subject"] == adapter]
    assert row["versions"], json.dumps(row)
    return str(row["versions"][0]["digest"])


async def _open(page: Page, site: ConsoleSite, adapter: str, key: str | None = None) -> None:
    await open_page(page, site, key or site.key, f"/console/t/{TENANT}/adapters/{adapter}")
    await expect(page.get_by_role("heading", level=1)).to_have_text(adapter)


async def _act(page: Page, alias: str, action: str) -> None:
    await page.get_by_role("button", name=f"{action} {alias}", exact=True).click()


async def _submit(page: Page, action: str) -> None:
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=action, exact=True).click()
    await expect(dialog).to_have_count(0)


def _alias(page: Page, alias: str) -> Locator:
    return page.get_by_role("table", name="Aliases").get_by_role("row").filter(has_text=alias)


def _version(page: Page, adapter: str, number: int) -> Locator:
    return page.get_by_role("table", name="Versions").get_by_role("row").filter(has_text=f"{adapter}@{number}")
