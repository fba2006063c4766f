"""Keys that a tenant's keys create and revoke, and times of use, on both databases."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import keys, tables
from app.database.tables import audit
from app.domain.access import Caller, Key, Scope
from app.domain.errors import Conflict, Forbidden, InvalidRequest, NotFound, Unauthenticated
from app.services.access import own_keys
from tests.support.registry import Node, SettableClock

pytest_plugins = ("tests.support.registry_fixtures",)

SCOPES = ("inference", "adapters:read", "keys:write")


async def maker_of(node: Node, *, scopes: Sequence[str] = SCOPES, **options: Any) -> Caller:
    if not (await node.tenants.list()).data:
        await node.tenants.create("pricing", actor="cli")
    made = await node.keys.create("pricing", name="maker", scopes=scopes, actor="cli", **options)
    return await node.keys.authenticate(made.text)


async def key_named(node: Node, name: str) -> Key:
    (key,) = [key for key in (await node.keys.list("pricing")).data if key.name == name]
    return key


async def test_a_key_gives_at_most_its_own_scopes(node: Node) -> None:
    maker = await maker_of(node)
    new = await node.own_keys.create(maker, name="app", scopes=["adapters:read"], restrictions={}, owner="Ada")
    caller = await node.keys.authenticate(new.text)
    assert (caller.tenant_slug, caller.scopes) == ("pricing", {Scope.ADAPTERS_READ})
    assert (await key_named(node, "app")).owner == "Ada"
    scopes = ["adapters:write", "usage:read", "inference"]
    with pytest.raises(Forbidden, match="lacks adapters:write, usage:read"):
        await node.own_keys.create(maker, name="more", scopes=scopes, restrictions={})
    with pytest.raises(InvalidRequest, match="scopes is"):
        await node.own_keys.create(maker, name="more", scopes=["admin"], restrictions={})


async def test_the_default_scope_needs_it_too(node: Node) -> None:
    maker = await maker_of(node, scopes=["keys:write"])
    with pytest.raises(Forbidden, match="lacks inference"):
        await node.own_keys.create(maker, name="app", restrictions={})


async def test_restrictions_are_inherited_and_never_wider(node: Node) -> None:
    own = {"adapters": ["prices", "margins"], "addresses": ["10.0.0.0/8"]}
    maker = await maker_of(node, restrictions=own)
    same = (await node.own_keys.create(maker, name="same", restrictions={})).key
    assert (same.restrictions.adapters, same.restrictions.addresses) == (("prices", "margins"), ("10.0.0.0/8",))
    narrow = (await node.own_keys.create(maker, name="narrow", restrictions={"adapters": ["prices"]})).key
    assert narrow.restrictions.adapters == ("prices",)
    for field, value in (("adapters", None), ("adapters", ["other"]), ("addresses", None), ("addresses", ["::/0"])):
        with pytest.raises(Forbidden, match=f"{field} would allow more"):
            await node.own_keys.create(maker, name="wide", restrictions={field: value})


async def test_a_key_with_limits_creates_none(node: Node) -> None:
    maker = await maker_of(node, restrictions={"limits": {"tokens_per_day": 7}})
    with pytest.raises(Forbidden, match="has limits"):
        await node.own_keys.create(maker, name="again", restrictions={})


async def test_a_new_key_does_not_outlive_its_maker(node: Node, clock: SettableClock) -> None:
    maker = await maker_of(node, expires_in_s=600)
    clock.advance(100)
    new = await node.own_keys.create(maker, name="app", restrictions={})
    assert (new.key.expires_at, new.key.lifetime_s) == ((await key_named(node, "maker")).expires_at, 500)
    short = await node.own_keys.create(maker, name="short", expires_in_s=60, restrictions={})
    assert short.key.lifetime_s == 60
    with pytest.raises(InvalidRequest, match="expires in 500 s"):
        await node.own_keys.create(maker, name="long", expires_in_s=501, restrictions={})


async def test_a_key_revokes_itself_and_what_has_no_more_rights(node: Node) -> None:
    maker = await maker_of(node)
    equal = await node.own_keys.create(maker, name="app", restrictions={})
    strong = await node.keys.create("pricing", name="strong", scopes=["usage:read"], actor="cli")
    await node.own_keys.revoke(maker, equal.key.id)
    assert (await key_named(node, "app")).revoked_at is not None
    with pytest.raises(Forbidden, match="lacks usage:read"):
        await node.own_keys.revoke(maker, strong.key.id)
    assert (await key_named(node, "strong")).revoked_at is None
    await node.own_keys.revoke(maker, maker.key_id)
    with pytest.raises(Unauthenticated):
        await node.own_keys.create(maker, name="late", restrictions={})


async def test_a_key_of_another_tenant_is_not_found(node: Node) -> None:
    maker = await maker_of(node)
    await node.tenants.create("retail", actor="cli")
    theirs = await node.keys.create("retail", name="theirs", actor="cli")
    platform = await node.keys.create(None, name="platform", actor="cli")
    for key_id in (theirs.key.id, platform.key.id, "0" * 16, "\0"):
        with pytest.raises(NotFound, match="There is no key"):
            await node.own_keys.revoke(maker, key_id)


async def test_makers_at_once_stay_below_the_maximum(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_keys, "MOST_KEYS", 4)
    maker = await maker_of(node)
    made = [node.own_keys.create(maker, name=f"k{number}", restrictions={}) for number in range(6)]
    results = await asyncio.gather(*made, return_exceptions=True)
    assert sum(isinstance(result, Conflict) for result in results) == 3
    assert len((await node.keys.list("pricing")).data) == 4


async def test_revoked_keys_count_for_a_day(node: Node, monkeypatch: pytest.MonkeyPatch, clock: SettableClock) -> None:
    monkeypatch.setattr(own_keys, "MOST_KEYS", 4)
    maker = await maker_of(node)
    for _ in range(3):
        await node.own_keys.revoke(maker, (await node.own_keys.create(maker, name="app", restrictions={})).key.id)
    with pytest.raises(Conflict, match="has 4 keys that work or were created within the last day; the limit is 4"):
        await node.own_keys.create(maker, name="app", restrictions={})
    clock.advance(86400)
    await node.own_keys.create(maker, name="app", restrictions={})


async def test_an_expired_key_makes_and_revokes_none(node: Node, clock: SettableClock) -> None:
    maker = await maker_of(node, expires_in_s=600)
    other = await node.keys.create("pricing", name="app", actor="cli")
    clock.advance(600)
    with pytest.raises(Unauthenticated, match="no longer valid"):
        await node.own_keys.create(maker, name="late", restrictions={})
    with pytest.raises(Unauthenticated, match="no longer valid"):
        await node.own_keys.revoke(maker, other.key.id)


async def test_a_maker_is_locked_until_its_key_is_stored(
    node: Node, other_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, unlocked, count = await maker_of(node), list[str](), keys.count_live_or_new

    async def counted(connection: AsyncConnection, **options: Any) -> int:
        # SQLite has one writer at a time.
        if connection.dialect.name == "postgresql":
            rows = select(tables.keys.c.id).where(tables.keys.c.id == maker.key_id).with_for_update(skip_locked=True)
            async with other_node.database.write() as other:
                unlocked.extend((await other.scalars(rows)).all())
        return await count(connection, **options)

    monkeypatch.setattr(keys, "count_live_or_new", counted)
    await node.own_keys.create(maker, name="app", restrictions={})
    assert unlocked == []


async def test_uses_are_stored_once_and_never_go_back(node: Node, other_node: Node, clock: SettableClock) -> None:
    made = await node.keys.create(None, name="first", actor="cli")
    await node.keys.uses.write()
    assert (await node.keys.list(None)).data[0].last_used_at is None
    await other_node.keys.authenticate(made.text)
    first = clock.now
    clock.advance(5)
    await node.keys.authenticate(made.text)
    await node.keys.uses.write()
    await other_node.keys.uses.write()
    other_node.await_others()
    assert first < (await node.keys.list(None)).data[0].last_used_at == first.replace(second=5)


async def test_the_audit_names_maker_and_owner(node: Node) -> None:
    maker = await maker_of(node)
    new = await node.own_keys.create(maker, name="app", restrictions={}, owner="Ada")
    await node.keys.restrict("pricing", new.key.id, {"owner": "Grace"}, actor="cli")
    await node.own_keys.revoke(maker, new.key.id)
    async with node.database.read() as connection:
        statement = select(audit).where(audit.c.subject == new.key.id).order_by(audit.c.id)
        rows = (await connection.execute(statement)).all()
    assert [(row.actor, row.action, row.after["owner"]) for row in rows] == [
        (maker.key_id, "key.create", "Ada"),
        ("cli", "key.restrict", "Grace"),
        (maker.key_id, "key.revoke", "Grace"),
    ]


@pytest.mark.parametrize("owner", ["", "a" * 101, "a\0b"])
async def test_a_wrong_owner_is_refused(node: Node, owner: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^owner is .*; it must be"):
        await node.keys.create(None, name="k", owner=owner, actor="cli")


async def test_a_version_names_the_owner_of_its_key(node: Node) -> None:
    maker = await maker_of(node)
    await node.keys.restrict("pricing", maker.key_id, {"owner": "Ada"}, actor="cli")
    version = await node.publish("pricing", "quotes", "a", by=maker.key_id)
    assert version.creator == "Ada"
    await node.keys.restrict("pricing", maker.key_id, {"owner": None}, actor="cli")
    assert (await node.adapters.get_version("pricing", "quotes", 1)).creator == "maker"
    platform = await node.keys.create(None, name="Operator", actor="cli")
    assert (await node.publish("pricing", "quotes", "b", by=platform.key.id)).creator is None
