"""States of a page: sign-in, empty, error, missing scope, old data, and the keyboard."""

import logging
import re
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.async_api import Browser, Route, expect

from tests.support.browser import PHONE, sign_in, watched_page
from tests.support.console_session import FROM_CONSOLE
from tests.support.console_site import OTHER, TENANT, ConsoleSite, open_page


async def test_a_wrong_key_is_refused_and_not_kept(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page:
        await page.goto("/console")
        await page.get_by_label("API key").fill("tnr_wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("request")
        await expect(page.get_by_label("API key")).to_have_value("")


async def test_the_key_is_nowhere_in_the_browser(
    browser: Browser, site: ConsoleSite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    async with watched_page(browser, site.url) as page:
        page.on("request", lambda request: shown.append(request.url))
        await sign_in(page, site.key)
        for path in ("adapters", "keys", "usage", "playground"):
            await page.goto(f"/console/t/{TENANT}/{path}")
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
            await expect(page.locator(".loading")).to_have_count(0)
            shown.append(await page.content())
        kept = await page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])")
        names = await page.evaluate("[Object.keys(localStorage).sort(), Object.keys(sessionStorage), document.cookie]")
        databases = await page.evaluate("indexedDB.databases()")
        (cookie,) = await page.context.cookies()
    assert names == [["tenora-last-input", "tenora-theme"], [], ""]
    assert (databases, cookie["httpOnly"], cookie["sameSite"]) == ([], True, "Strict")
    for secret in (site.key.rpartition("_")[2], cookie["value"]):
        assert not any(secret in text for text in (*shown, kept, caplog.text))
    assert site.key not in str(cookie)


async def test_sign_out_ends_the_session(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page:
        await sign_in(page, site.key)
        await expect(page.get_by_role("heading", level=1)).to_have_text("Adapters")
        (cookie,) = await page.context.cookies()
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("API key")).to_be_visible()
        await page.context.add_cookies([{"name": cookie["name"], "value": cookie["value"], "url": site.url}])
        await page.reload()
        await expect(page.get_by_label("API key")).to_be_visible()


async def test_a_page_without_input_is_signed_out(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page:
        await page.clock.install()
        await sign_in(page, site.key)
        (cookie,) = await page.context.cookies()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Adapters")
        await page.clock.fast_forward("50:00")
        await page.keyboard.press("Tab")
        await page.clock.fast_forward("50:00")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Adapters")
        await page.clock.fast_forward("11:00")
        await expect(page.get_by_label("API key")).to_be_visible()
        headers = FROM_CONSOLE | {"cookie": f"{cookie['name']}={cookie['value']}"}
        async with httpx.AsyncClient(base_url=site.url, trust_env=False) as thief:
            assert (await thief.get("/v1/session", headers=headers)).status_code == 401


async def test_a_revoked_key_leads_to_the_sign_in(browser: Browser, site: ConsoleSite) -> None:
    with site.client(site.admin_key) as admin:
        body = {"name": "short", "scopes": ["inference", "adapters:read"]}
        key = admin.post(f"/admin/tenants/{TENANT}/keys", json=body).json()
    async with watched_page(browser, site.url) as page:
        await sign_in(page, key["key"])
        with site.client(site.admin_key) as admin:
            assert admin.delete(f"/admin/tenants/{TENANT}/keys/{key['id']}").is_success
        # The event feed ends with the key.
        await expect(page.get_by_label("API key")).to_be_visible()


async def test_a_missing_scope_is_named_with_the_command(browser: Browser, site: ConsoleSite) -> None:
    scopes = {"adapters": "adapters:read", "upload": "adapters:write", "usage": "usage:read", "keys": "keys:write"}
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.bare_key, None)
        for path, scope in scopes.items():
            await page.goto(f"/console/t/{TENANT}/{path}")
            await expect(page.get_by_role("status").filter(has_text=f"lacks the scope {scope}")).to_be_visible()
            await expect(page.locator("pre")).to_contain_text(f"--scope {scope}")


async def test_an_empty_list_has_the_next_step(browser: Browser, site: ConsoleSite) -> None:
    with site.client(site.admin_key) as admin:
        admin.post("/admin/tenants", json={"slug": "empty"})
    pages = {"adapters": "adapters push", "shared": "adapters share", "deletions": "adapters delete"}
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.admin_key, None)
        for path, command in pages.items():
            await page.goto(f"/console/t/empty/{path}")
            await expect(page.locator(".empty pre")).to_contain_text(f"tenora {command}")


async def test_an_error_has_its_request_id(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.key, None)
        async with page.expect_response(re.compile("/v1/adapters/missing$")) as answer:
            await page.goto(f"/console/t/{TENANT}/adapters/missing")
        request_id = (await answer.value).headers["x-request-id"]
        await expect(page.get_by_role("alert").get_by_text(request_id)).to_be_visible()


async def test_old_data_stays_while_the_server_restarts(browser: Browser, site: ConsoleSite) -> None:
    async def refuse(route: Route) -> None:
        await route.fulfill(status=503, body="{}", headers={"retry-after": "1"})

    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.admin_key, "/console/engine")
        await expect(page.get_by_text("Slots used")).to_be_visible()
        await page.route("**/admin/engine*", refuse)
        await expect(page.get_by_role("status").filter(has_text="As of")).to_be_visible()
        await expect(page.get_by_text("Slots used")).to_be_visible()
        await page.unroute_all()
        await expect(page.get_by_role("status").filter(has_text="As of")).to_have_count(0)


async def test_a_new_key_is_shown_once(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.key, f"/console/t/{TENANT}/keys")
        await page.get_by_role("button", name="Create a key…").click()
        await page.get_by_label("Name").fill("nightly job")
        await page.get_by_label("Owner").fill("Ada Lovelace")
        await page.get_by_role("dialog").get_by_role("button", name="Create the key").click()
        shown = page.get_by_label("New key")
        await expect(shown).to_contain_text("tnr_")
        key = await shown.inner_text()
        # The dialog before closes once the list is up to date.
        await page.get_by_role("dialog").filter(has=shown).get_by_role("button", name="Close").click()
        row = page.get_by_role("row").filter(has_text="nightly job")
        await expect(row).to_contain_text("Ada Lovelace")
        assert key not in await page.content()
        await row.get_by_role("button", name="Revoke nightly job").click()
        await page.get_by_label("Type").fill("nightly job")
        await page.get_by_role("button", name="Revoke the key").click()
        await expect(row).to_contain_text("revoked")
    with site.client(key.strip()) as client:
        assert client.get("/v1/key").status_code == 401


@pytest.mark.parametrize("width", [PHONE, 1280])
async def test_the_keyboard_reaches_everything(browser: Browser, site: ConsoleSite, width: int) -> None:
    async with watched_page(browser, site.url, width=width) as page:
        await page.goto("/console")
        await expect(page.get_by_label("API key")).to_be_focused()
        await page.keyboard.insert_text(site.key)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_be_focused()
        await page.goto(f"/console/t/{TENANT}/adapters/quotes")
        await expect(page.get_by_role("heading", level=1)).to_be_focused()
        promote = page.get_by_role("button", name="Promote default")
        for _ in range(40):
            await page.keyboard.press("Tab")
            if await promote.evaluate("button => button === document.activeElement"):
                break
        await expect(promote).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(promote).to_be_focused()


async def test_a_list_is_searched_and_ordered(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.admin_key, "/console/tenants")
        await page.get_by_label("Name").fill("SUPPLY")
        rows = page.get_by_role("table", name="Tenants").get_by_role("row")
        await expect(rows).to_have_count(2)
        await expect(rows.last).to_contain_text(OTHER)
        await page.get_by_label("Name").fill("")
        await page.get_by_label("Order").select_option("by name, backwards")
        await expect(rows.nth(1)).to_contain_text(OTHER)


async def test_a_reload_stays_on_the_page(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.key)
        await page.get_by_role("link", name="Usage").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Usage")
        await page.reload()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Usage")
        assert urlsplit(page.url).path == f"/console/t/{TENANT}/usage"


async def test_a_change_by_another_client_appears(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page, watched_page(browser, site.url) as other:
        await open_page(page, site, site.key)
        await page.get_by_role("link", name="Events").click()
        await open_page(other, site, site.key, f"/console/t/{TENANT}/adapters/labels")
        await other.get_by_role("button", name="New alias…").click()
        await other.get_by_role("textbox", name="Alias").fill("seen")
        await other.get_by_role("dialog").get_by_role("button", name="Promote").click()
        await expect(page.get_by_role("row").filter(has_text="labels:seen")).to_be_visible()
        await page.get_by_role("link", name="Adapters").click()
        await expect(page.get_by_role("row").filter(has_text="labels")).to_contain_text("seen")
        await page.get_by_role("link", name="labels", exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("labels")
