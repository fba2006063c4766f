"""Search and order of lists on both databases."""

import base64
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.domain.access import KeyFilter
from app.domain.errors import InvalidRequest
from app.domain.pages import Page
from app.domain.searches import BY_NAME, Search, Sort
from app.services.catalog.shares import SharingService
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)

NAMES = ("prices", "margins", "price-lists", "a.b_c", "zeta")
Lister = Callable[..., Awaitable[Page[Any]]]


async def pages(lister: Lister, **options: Any) -> list[str]:
    """Collect the names of a whole list, two items a page."""
    names, cursor = list[str](), None
    while True:
        page = await lister(limit=2, cursor=cursor, **options)
        names += [getattr(item, "slug", item.name) for item in page.data]
        cursor = page.next_cursor
        if cursor is None:
            return names


async def filled(node: Node) -> dict[str, Lister]:
    """Create tenants, and adapters of the first, in the same order."""
    for name in NAMES:
        await node.tenants.create(name, name=f"Unit {name.upper()}", actor="cli")
        await node.publish("prices", name, name)

    async def adapters(**options: Any) -> Page[Any]:
        return await node.adapters.list_adapters("prices", **options)

    return {"tenants": node.tenants.list, "adapters": adapters}


@pytest.mark.parametrize("kind", ["tenants", "adapters"])
async def test_every_order_has_each_item_once(node: Node, kind: str) -> None:
    lister = (await filled(node))[kind]
    assert await pages(lister) == list(NAMES)
    assert await pages(lister, search=Search(sort=Sort.NEWEST)) == list(reversed(NAMES))
    by_name = await pages(lister, search=Search(sort=Sort.NAME))
    assert sorted(by_name) == sorted(NAMES)
    assert by_name[-1] == "zeta"
    assert await pages(lister, search=Search(sort=Sort.NAME_REVERSED)) == list(reversed(by_name))


@pytest.mark.parametrize("kind", ["tenants", "adapters"])
async def test_a_search_finds_parts_of_names(node: Node, kind: str) -> None:
    lister = (await filled(node))[kind]
    assert await pages(lister, search=Search("price")) == ["prices", "price-lists"]
    assert await pages(lister, search=Search("PRICE", Sort.NEWEST)) == ["price-lists", "prices"]
    assert await pages(lister, search=Search("b_c")) == ["a.b_c"]
    for nothing in ("%", "p_ices", "\\", "'; --"):
        assert await pages(lister, search=Search(nothing)) == []


async def shared(node: Node) -> SharingService:
    """Share adapters of two tenants with a third, and one of them with two more."""
    sharing = SharingService(node.database, clock=node.clock)
    for tenant in ("pricing", "labels", "retail", "retail-b", "shop"):
        await node.tenants.create(tenant, actor="cli")
    for owner, adapter in (("pricing", "prices"), ("labels", "margins"), ("labels", "prices")):
        await node.publish(owner, adapter, f"{owner}/{adapter}")
        await sharing.share(owner, adapter, "retail", actor="k", must_exist=True)
    for recipient in ("shop", "retail-b"):
        await sharing.share("pricing", "prices", recipient, actor="k", must_exist=True)
    return sharing


async def every(lister: Lister, search: Search) -> list[Any]:
    """Collect a whole list, one item a page."""
    items, cursor = list[Any](), None
    while True:
        page = await lister(search=search, limit=1, cursor=cursor)
        items += page.data
        cursor = page.next_cursor
        if cursor is None:
            return items


@pytest.mark.parametrize(
    ("search", "names"),
    [
        (Search(), ["pricing/prices", "labels/margins", "labels/prices"]),
        (Search(sort=Sort.NEWEST), ["labels/prices", "labels/margins", "pricing/prices"]),
        (Search(sort=Sort.NAME), ["labels/margins", "labels/prices", "pricing/prices"]),
        (Search("S/PRI", Sort.NAME_REVERSED), ["labels/prices"]),
        (Search("pri", Sort.NAME_REVERSED), ["pricing/prices", "labels/prices"]),
    ],
)
async def test_shared_adapters_are_searched_and_ordered(node: Node, search: Search, names: list[str]) -> None:
    found = await every(functools.partial((await shared(node)).list_shared, "retail"), search)
    # "pri" is also a part of the owner's name.
    assert [adapter.full_name for adapter in found] == names


@pytest.mark.parametrize(
    ("search", "names"),
    [
        (BY_NAME, ["retail", "retail-b", "shop"]),
        (Search(sort=Sort.NAME_REVERSED), ["shop", "retail-b", "retail"]),
        (Search("TAIL", Sort.NAME), ["retail", "retail-b"]),
        (Search("_", Sort.NAME), []),
    ],
)
async def test_recipients_are_searched_and_ordered(node: Node, search: Search, names: list[str]) -> None:
    found = await every(functools.partial((await shared(node)).list_shares, "pricing", "prices"), search)
    assert [share.recipient for share in found] == names


async def test_tenants_are_found_by_display_name(node: Node) -> None:
    await node.tenants.create("t1", name="Ärzte & Apotheken", actor="cli")
    await node.tenants.create("t2", name="Retail", actor="cli")
    assert await pages(node.tenants.list, search=Search("apotheken")) == ["t1"]
    assert await pages(node.tenants.list, search=Search("reTAIL")) == ["t2"]


@pytest.mark.parametrize("text", ["Önal", "ÖNAL & ÇO", "l & Ço"])
async def test_names_beyond_ascii_are_found(node: Node, text: str) -> None:
    names = ("Önal & Ço", "ÖNAL & ÇO")
    for number, name in enumerate(names):
        await node.tenants.create(f"t{number}", name=name, actor="cli")
        await node.keys.create(f"t{number}", name="key", owner=name, actor="cli")
    exact = {name for name in names if text in name}
    assert exact <= {tenant.name for tenant in (await node.tenants.list(search=Search(text))).data}
    keys = await node.keys.list(None, only=KeyFilter(all_owners=True, text=text))
    assert exact <= {key.owner for key in keys.data}


@pytest.mark.parametrize(("text", "slugs"), [("Ö_", ["t1"]), ("%Ö", ["t2"]), ("Ö%", []), ("_Ö", [])])
async def test_patterns_beyond_ascii_are_plain_text(node: Node, text: str, slugs: list[str]) -> None:
    for slug, name in (("t1", "Ö_al"), ("t2", "100%Ö"), ("t3", "Önal")):
        await node.tenants.create(slug, name=name, actor="cli")
    assert [tenant.slug for tenant in (await node.tenants.list(search=Search(text))).data] == slugs


@pytest.mark.parametrize("text", ["", "a" * 101, "a\0b", "\ud800", "a\n"])
async def test_texts_that_no_name_can_have_are_refused(node: Node, text: str) -> None:
    await node.tenants.create("pricing", actor="cli")
    with pytest.raises(InvalidRequest, match=r"^q is"):
        await node.tenants.list(search=Search(text))
    with pytest.raises(InvalidRequest, match=r"^q is"):
        await node.adapters.list_adapters("pricing", search=Search(text))
    with pytest.raises(InvalidRequest, match=r"^q is"):
        await node.keys.list(None, only=KeyFilter(text=text))


async def test_a_cursor_belongs_to_its_order(node: Node) -> None:
    lister = (await filled(node))["tenants"]
    cursor = (await lister(limit=1, search=Search(sort=Sort.NAME))).next_cursor
    with pytest.raises(InvalidRequest, match="cursor"):
        await lister(limit=1, cursor=cursor, search=Search(sort=Sort.NEWEST))


@pytest.mark.parametrize("sort", Sort)
async def test_keys_of_one_name_or_time_are_on_one_page_each(node: Node, sort: Sort) -> None:
    await node.tenants.create("pricing", actor="cli")
    made = []
    for number in range(7):
        made.append((await node.keys.create("pricing", name=f"Key {number % 2}: ü", actor="cli")).key)
        node.clock.advance(number % 3)
    expected = sorted(made, key=lambda key: (key.name if sort.by_name else key.created_at, key.id))
    only, found, cursor = KeyFilter(sort=sort), list[str](), None
    while True:
        page = await node.keys.list("pricing", only=only, limit=2, cursor=cursor)
        found += [key.id for key in page.data]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len(found) == 7
    assert found == [key.id for key in (reversed(expected) if sort.descending else expected)]


@pytest.mark.parametrize(
    "text",
    ["x", "a" * 16, "a" * 16 + ":", "a" * 16 + ":x", "a" * 16 + ":-1", "a" * 16 + ":1e3", "a" * 16 + ":" + "9" * 18],
)
async def test_other_cursors_of_keys_are_refused(node: Node, text: str) -> None:
    cursor = base64.urlsafe_b64encode(text.encode()).decode()
    with pytest.raises(InvalidRequest, match="cursor"):
        await node.keys.list(None, cursor=cursor)


async def test_keys_are_found_by_id_name_and_owner(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    till = (await node.keys.create("pricing", name="Till", owner="Ada", actor="cli")).key
    shop = (await node.keys.create("pricing", name="shop", expires_in_s=60, actor="cli")).key
    laptop = (await node.keys.create(None, name="laptop", owner="Grace of tills", actor="cli")).key

    async def found(tenant: str | None = None, **only: Any) -> set[str]:
        return {key.id for key in (await node.keys.list(tenant, only=KeyFilter(**only))).data}

    assert await found(all_owners=True) == {till.id, shop.id, laptop.id}
    assert await found(all_owners=True, text="till") == {till.id, laptop.id}
    assert await found(text="till") == {laptop.id}
    assert await found("pricing", text="ada") == await found("pricing", text=till.id[3:12]) == {till.id}
    node.clock.advance(60)
    await node.keys.revoke(None, laptop.id, actor="cli")
    assert await found(all_owners=True, working=True) == {till.id}
    assert await found(all_owners=True, working=False) == {shop.id, laptop.id}
    assert await found("pricing", working=False) == {shop.id}


async def test_lists_of_all_keys_follow_their_tenants(node: Node) -> None:
    ids = dict[str | None, str]()
    for tenant in ("gone", "off", "on", None):
        if tenant is not None:
            await node.tenants.create(tenant, actor="cli")
        ids[tenant] = (await node.keys.create(tenant, name="key", actor="cli")).key.id
    await node.tenants.delete("gone", actor="cli")
    await node.tenants.update("off", disabled=True, actor="cli")

    async def found(tenant: str | None = None, **only: Any) -> set[str]:
        return {key.id for key in (await node.keys.list(tenant, only=KeyFilter(**only))).data}

    assert await found(all_owners=True) == {ids["off"], ids["on"], ids[None]}
    assert await found(all_owners=True, working=True) == {ids["on"], ids[None]}
    assert await found(all_owners=True, working=False) == {ids["off"]}
    assert await found("off") == await found("off", working=False) == {ids["off"]}
    assert await found("off", working=True) == set()
