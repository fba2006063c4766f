"""Playground in the browser: columns, differences, stop, prompts from a file, blind votes, code to copy."""

import ast
import asyncio
import csv
import json
import shlex
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect

from tests.support.browser import watched_page
from tests.support.console_site import TENANT, ConsoleSite, open_page

_PROMPT = "It's $HOME; what is sugar?"


async def test_fields_appear_when_the_models_are_known(browser: Browser, site: ConsoleSite) -> None:
    may_list = asyncio.Event()

    async def late(route: Route) -> None:
        await may_list.wait()
        await route.continue_()

    async with watched_page(browser, site.url) as page:
        await page.route("**/v1/adapters?*", late)
        await open_page(page, site, site.key, f"/console/t/{TENANT}/playground")
        await expect(page.get_by_role("main").get_by_text("Loading")).to_be_attached()
        await expect(page.get_by_label("Model 1")).to_have_count(0)
        may_list.set()
        await expect(page.get_by_label("Model 1")).not_to_have_value("base")


@pytest.mark.parametrize(
    ("kind", "label"), [("Compare", "Model 1"), ("Prompts from a file", "Model 1"), ("Blind A/B", "One model")]
)
async def test_a_newer_list_of_models_changes_no_field(
    browser: Browser, site: ConsoleSite, kind: str, label: str
) -> None:
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.key, f"/console/t/{TENANT}/playground")
        await page.get_by_role("button", name=kind).click()
        field = page.get_by_label(label)
        first = await field.input_value()
        alias = f"/v1/adapters/{first}/aliases/a"
        with site.client(site.key) as tenant:
            tenant.put(alias, json={"version": 1}).raise_for_status()
            try:
                await expect(page.locator(f"option[value='{first}:a']")).to_be_attached()
                shown = await field.input_value()
            finally:
                tenant.delete(alias).raise_for_status()
    assert shown == first


async def test_a_key_that_may_not_list_adapters_gets_the_base(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.bare_key, f"/console/t/{TENANT}/playground")
        for number in (1, 2):
            await expect(page.get_by_label(f"Model {number}")).to_have_value("base")
        await page.get_by_label("Model 1").fill("labels")
        await _ask(page)
        await expect(_column(page, 1)).to_contain_text("Answered bylabels@1")


async def test_columns_show_answers_with_their_measurements(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page:
        await _open(page, site)
        await page.get_by_role("button", name="Add a column").click()
        for number, model in enumerate(("labels", "base", "supply-chain/stock"), 1):
            await page.get_by_label(f"Model {number}").fill(model)
        await _ask(page)
        for number, version in enumerate(("labels@1", "base", "supply-chain/stock@1"), 1):
            column = _column(page, number)
            await expect(column.get_by_role("group", name="Answer")).to_have_text("Sugar is sweet.")
            await expect(column).to_contain_text(f"Answered by{version}")
            await expect(column).to_contain_text("12 in, 3 out")
            await expect(column).to_contain_text("done")


async def test_an_operator_acts_as_the_tenant(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page:
        await open_page(page, site, site.admin_key, f"/console/t/{TENANT}/playground?model=labels")
        await expect(page.get_by_text(f"You act as {TENANT}")).to_be_visible()
        await _ask(page)
        await expect(_column(page, 1)).to_contain_text("Answered bylabels@1")
        await expect(_column(page, 1)).to_contain_text("USD")
        await page.goto("/console/audit")
        await expect(page.get_by_role("table").get_by_role("row").filter(has_text="act").first).to_be_visible()


async def test_the_cost_follows_the_answer(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page:
        await _open(page, site)
        await _ask(page)
        # 12 tokens at 0.15 and 3 at 0.60 for a million.
        await expect(_column(page, 1)).to_contain_text("0.0000036 USD")


async def test_a_removed_column_takes_its_answer_along(browser: Browser, site: ConsoleSite) -> None:
    site.engine.by_model["base"] = ("Made from beet.",)
    try:
        async with watched_page(browser, site.url) as page:
            await _open(page, site)
            await page.get_by_role("button", name="Add a column").click()
            for number, model in enumerate(("base", "labels", "labels"), 1):
                await page.get_by_label(f"Model {number}").fill(model)
            await _ask(page)
            await page.get_by_role("button", name="Remove column 1").click()
            await expect(page.get_by_label("Model 1")).to_have_value("labels")
            await expect(_column(page, 1).get_by_role("group", name="Answer")).to_have_text("Sugar is sweet.")
    finally:
        del site.engine.by_model["base"]


async def test_an_error_stands_in_its_column(browser: Browser, site: ConsoleSite) -> None:
    async with watched_page(browser, site.url) as page:
        await _open(page, site)
        await page.get_by_label("Model 2").fill("missing")
        await _ask(page)
        await expect(_column(page, 1)).to_contain_text("Sugar is sweet.")
        await expect(_column(page, 2).get_by_role("alert")).to_contain_text("request")


async def test_stop_ends_all_answers(browser: Browser, site: ConsoleSite) -> None:
    site.engine.may_chat.clear()
    try:
        async with watched_page(browser, site.url) as page:
            await _open(page, site)
            await _ask(page)
            await expect(_column(page, 1)).to_contain_text("waiting")
            await page.get_by_role("button", name="Stop").click()
            for number in (1, 2):
                await expect(_column(page, number)).to_contain_text("stopped")
            await expect(page.get_by_role("button", name="Ask")).to_be_enabled()
    finally:
        site.engine.may_chat.set()


async def test_words_that_differ_are_marked(browser: Browser, site: ConsoleSite) -> None:
    site.engine.by_model["base"] = ("Sugar is made from beet.",)
    try:
        async with watched_page(browser, site.url) as page:
            await _open(page, site)
            await page.get_by_label("Model 1").fill("labels")
            await page.get_by_label("Model 2").fill("base")
            await page.get_by_label("Mark the words").check()
            await _ask(page)
            answer = _column(page, 2).get_by_role("group", name="Answer")
            await expect(answer.locator("ins")).to_have_text("made from beet.")
            await expect(answer.locator("del")).to_have_text("sweet.")
    finally:
        del site.engine.by_model["base"]


async def test_prompts_of_a_file_become_a_grid(browser: Browser, site: ConsoleSite, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"=prompt {number}"}) + "\n" for number in range(3)))
    async with watched_page(browser, site.url) as page:
        await _open(page, site)
        await page.get_by_role("button", name="Prompts from a file").click()
        await page.get_by_label("File of prompts").set_input_files(prompts)
        await page.get_by_role("button", name="Ask 3 prompts").click()
        await expect(page.get_by_role("cell", name="Sugar is sweet.")).to_have_count(6)
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Download as CSV").click()
        saved = await (await download.value).path()
        rows = list(csv.reader(saved.read_text().splitlines()))
    # A spreadsheet would run a cell that begins with an equals sign.
    assert [row[0] for row in rows] == ["prompt", *(f"'=prompt {number}" for number in range(3))]


async def test_a_file_with_too_many_prompts_is_refused(browser: Browser, site: ConsoleSite, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("sugar\n" * 21)
    async with watched_page(browser, site.url) as page:
        await _open(page, site)
        await page.get_by_role("button", name="Prompts from a file").click()
        await page.get_by_label("File of prompts").set_input_files(prompts)
        await expect(page.get_by_role("alert")).to_contain_text("has 21 prompts")


async def test_a_blind_vote_shows_the_names_afterwards(browser: Browser, site: ConsoleSite) -> None:
    site.engine.by_model["base"] = ("Made from beet.",)
    try:
        async with watched_page(browser, site.url) as page:
            await _open(page, site)
            await page.get_by_role("button", name="Blind A/B").click()
            await page.get_by_label("One model").fill("labels")
            await page.get_by_label("The other model").fill("base")
            await page.get_by_label("Prompt", exact=True).fill(_PROMPT)
            await page.get_by_role("button", name="Ask both").click()
            left, right = page.get_by_role("region", name="Left"), page.get_by_role("region", name="Right")
            await expect(page.get_by_role("button", name="Left is better")).to_be_enabled()
            await expect(left).not_to_contain_text("labels")
            is_base = "beet" in await left.inner_text()
            await page.get_by_role("button", name="Left is better").click()
            await expect(left).to_contain_text("Left: base" if is_base else "Left: labels")
            await expect(right).to_contain_text("Right: labels" if is_base else "Right: base")
            winner = page.get_by_role("row").filter(has_text="base" if is_base else "labels")
            await expect(winner).to_contain_text("100%")
    finally:
        del site.engine.by_model["base"]


async def test_code_to_copy_is_the_request(browser: Browser, site: ConsoleSite) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    async with watched_page(browser, site.url, permissions=permissions) as page:
        await _open(page, site)
        await page.get_by_label("Model 1").fill("labels")
        await page.get_by_label("Prompt", exact=True).fill(_PROMPT)
        curl = shlex.split((await _copied(page, "Copy as curl")).replace("\\\n", " "))
        program = ast.parse(await _copied(page, "Copy as openai code"))
    message = {"role": "user", "content": _PROMPT}
    assert json.loads(curl[-1])["messages"] == [message]
    assert curl[2] == f"{site.url}/v1/chat/completions"
    (call,) = [
        node
        for node in ast.walk(program)
        if isinstance(node, ast.Call) and node.keywords[-1:] and node.keywords[-1].arg == "messages"
    ]
    assert ast.literal_eval(call.keywords[-1].value) == [message]


async def _open(page: Page, site: ConsoleSite) -> None:
    await open_page(page, site, site.key, f"/console/t/{TENANT}/playground?model=labels")
    await expect(page.get_by_label("Model 1")).to_have_value("labels")


async def _ask(page: Page) -> None:
    await page.get_by_label("Prompt", exact=True).fill(_PROMPT)
    await page.get_by_role("button", name="Ask", exact=True).click()


def _column(page: Page, number: int) -> Locator:
    return page.get_by_role("region", name=f"Column {number}")


async def _copied(page: Page, button: str) -> str:
    await _column(page, 1).get_by_role("button", name=button).click()
    await expect(_column(page, 1).get_by_text("Copied").first).to_be_visible()
    return str(await page.evaluate("navigator.clipboard.readText()"))
