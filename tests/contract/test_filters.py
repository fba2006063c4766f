"""Listings filtered by label, state and base, on both databases; and a version of another base."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from adapters.identity import ModelName
from app.database.adapters import ensure_adapter, set_targets
from app.database.tenants import find_tenant
from app.database.versions import insert_version, settle_version
from app.domain.adapters import VersionState
from app.domain.errors import InvalidRequest, WrongBase
from app.domain.filters import VersionFilter
from app.services.catalog.filters import STATES, version_filter
from tests.support.registry import BASE_DIGEST, BASE_NAME, Node, new_version

pytest_plugins = ("tests.support.registry_fixtures",)

OTHER_NAME, OTHER_DIGEST = "llama-old", "c" * 64


async def publish(
    node: Node, adapter: str, labels: Mapping[str, str], *, base: str | None = BASE_NAME, state: str = "ready"
) -> None:
    digest = {BASE_NAME: BASE_DIGEST, OTHER_NAME: OTHER_DIGEST, None: None}[base]
    async with node.database.write() as connection:
        owner = await find_tenant(connection, "pricing", lock=True)
        assert owner is not None
        line = await ensure_adapter(connection, owner, adapter, at=node.clock())
        new = new_version(f"{adapter} {labels} {base} {state}", node.clock())
        provenance = replace(new.provenance, base_name=base, base_digest=digest)
        made = await insert_version(connection, line, replace(new, labels=labels, provenance=provenance))
        version_id = made.key.version_id
        await settle_version(connection, version_id, VersionState(state))
        await set_targets(
            connection, line, "default", {version_id: 100}, at=node.clock(), actor="cli", action="publish"
        )


@pytest.fixture
async def filled(node: Node) -> Node:
    await node.tenants.create("pricing", actor="cli")
    await publish(node, "prices", {"team": "x", "tier": "gold"}, base=OTHER_NAME)
    await publish(node, "prices", {"team": "x"})
    await publish(node, "prices", {"team": "y"}, state="rejected")
    await publish(node, "quotes", {"team": "y", "tier": "gold"})
    await publish(node, "old", {}, base=None)
    return node


async def adapters(node: Node, only: VersionFilter, **page: Any) -> list[str]:
    return [adapter.name for adapter in (await node.adapters.list_adapters("pricing", only=only, **page)).data]


async def numbers(node: Node, only: VersionFilter) -> list[int]:
    return [version.number for version in (await node.adapters.list_versions("pricing", "prices", only=only)).data]


@pytest.mark.parametrize(
    ("only", "found", "of_prices"),
    [
        (version_filter(), ["prices", "quotes", "old"], [3, 2, 1]),
        (version_filter(["team=x"]), ["prices"], [2, 1]),
        (version_filter(["team=y"]), ["prices", "quotes"], [3]),
        (version_filter(["team=y"], state="ready"), ["quotes"], []),
        (version_filter(["tier=gold"]), ["prices", "quotes"], [1]),
        (version_filter(["tier=gold", "team=x"]), ["prices"], [1]),
        # One version must match all labels; matches spread over several versions do not count.
        (version_filter(["tier=gold"], base=BASE_NAME), ["quotes"], []),
        (version_filter(["team="]), [], []),
        (version_filter(["team=%"]), [], []),
        (version_filter(state="rejected"), ["prices"], [3]),
        (version_filter(state="retired"), [], []),
        (version_filter(base=OTHER_NAME), ["prices"], [1]),
        (version_filter(base=OTHER_DIGEST), ["prices"], [1]),
        (version_filter(base=f"sha256:{OTHER_DIGEST}"), ["prices"], [1]),
        (version_filter(base=BASE_DIGEST), ["prices", "quotes"], [3, 2]),
        (version_filter(base="nothing"), [], []),
    ],
)
async def test_only_what_is_wanted_is_listed(
    filled: Node, only: VersionFilter, found: list[str], of_prices: list[int]
) -> None:
    assert await adapters(filled, only) == found
    assert await numbers(filled, only) == of_prices


async def test_pages_of_a_narrowed_list(filled: Node) -> None:
    only = version_filter(["team=y"])
    first = await filled.adapters.list_adapters("pricing", only=only, limit=1)
    second = await filled.adapters.list_adapters("pricing", only=only, limit=1, cursor=first.next_cursor)
    assert [adapter.name for page in (first, second) for adapter in page.data] == ["prices", "quotes"]
    assert second.next_cursor is None
    versions = version_filter(["team=x"])
    newest = await filled.adapters.list_versions("pricing", "prices", only=versions, limit=1)
    oldest = await filled.adapters.list_versions("pricing", "prices", only=versions, limit=1, cursor=newest.next_cursor)
    assert [version.number for page in (newest, oldest) for version in page.data] == [2, 1]
    assert oldest.next_cursor is None


async def test_labels_are_shown_with_each_version(filled: Node) -> None:
    page = await filled.adapters.list_versions("pricing", "prices")
    assert [dict(version.labels) for version in page.data] == [
        {"team": "y"},
        {"team": "x"},
        {"team": "x", "tier": "gold"},
    ]


@pytest.mark.parametrize("state", ["deleted", "READY", "", "ready "])
def test_states_that_cannot_be_listed(state: str) -> None:
    with pytest.raises(InvalidRequest, match=", ".join(STATES)) as caught:
        version_filter(state=state)
    assert caught.value.param == "state"


@pytest.mark.parametrize("base", ["", "x" * 201, "a\0b", "\ud800"])
def test_bases_that_cannot_be_asked_for(base: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^base is .*, but must have 1 to 200 printable characters"):
        version_filter(base=base)


async def test_a_version_of_another_base_is_refused_and_both_are_named(filled: Node) -> None:
    tenant = await filled.tenants.get("pricing")
    with pytest.raises(WrongBase) as caught:
        await filled.adapters.resolve(tenant.id, ModelName("prices", alias=None, number=1))
    for word in ("prices@1", OTHER_NAME, OTHER_DIGEST[:12], BASE_NAME, BASE_DIGEST[:12]):
        assert word in caught.value.message
    assert (await filled.adapters.resolve(tenant.id, ModelName("prices", alias=None, number=2))).number == 2
    # The oldest versions have no record of the base that they were validated against. They are served as before.
    assert (await filled.adapters.resolve(tenant.id, ModelName("old"))).number == 1
