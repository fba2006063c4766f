"""API keys: format, permissions and expiry."""

import asyncio
import string
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from app.database.keys import find_credential
from app.database.tables import audit, keys
from app.domain.access import Scope
from app.domain.errors import Conflict, InvalidRequest, NotFound, Unauthenticated
from app.services.access.caller_cache import CallerCache
from app.services.access.key_format import KeyHasher, mint_key, parse_key
from app.services.access.keys import KeyService
from app.services.access.peppers import Peppers
from tests.support.registry import Node, SettableClock, recorded_statements

pytest_plugins = ("tests.support.registry_fixtures",)

BASE62 = string.digits + string.ascii_letters
KEY = mint_key().text


def test_a_minted_key_has_the_documented_shape() -> None:
    minted = mint_key()
    prefix, key_id, rest = minted.text.split("_")
    assert (prefix, key_id, len(key_id), len(rest)) == ("tnr", minted.id, 16, 49)
    assert set(key_id + rest) <= set(BASE62)
    assert parse_key(minted.text) == minted.id
    assert 62**43 >= 2**256


def test_the_checksum_is_the_crc32_of_all_before_it() -> None:
    # zlib's CRC-32 is 3317549518, which is 3cW6BC in base62 with digits first, then upper case, then lower case.
    assert parse_key("tnr_" + "0" * 16 + "_" + "0" * 43 + "3cW6BC") == "0" * 16


@given(st.integers(0, len(KEY) - 1), st.sampled_from(BASE62))
def test_one_wrong_character_is_noticed(place: int, character: str) -> None:
    changed = KEY[:place] + character + KEY[place + 1 :]
    assert (parse_key(changed) is None) == (changed != KEY)


@given(st.one_of(st.text(), st.text(alphabet=BASE62 + "_", min_size=60, max_size=80).map(lambda text: f"tnr_{text}")))
def test_other_text_is_no_key(text: str) -> None:
    assert parse_key(text) is None


def test_hashes_depend_on_the_pepper() -> None:
    first, second = KeyHasher(Peppers(b"one")), KeyHasher(Peppers(b"two"))
    assert first.hash(KEY) == first.hash(KEY) != second.hash(KEY)
    with pytest.raises(ValueError, match="pepper"):
        KeyHasher(Peppers(b"one", (b"",)))


async def test_a_tenants_key_speaks_for_its_tenant(node: Node) -> None:
    tenant = await node.tenants.create("pricing", actor="cli")
    made = await node.keys.create("pricing", name="till", scopes=["adapters:write", "inference"], actor="cli")
    caller = await node.keys.authenticate(made.text)
    assert (caller.key_id, caller.tenant_id, caller.tenant_slug) == (made.key.id, tenant.id, "pricing")
    assert caller.scopes == {Scope.INFERENCE, Scope.ADAPTERS_WRITE}
    assert len(caller.salt) == 64
    assert caller.salt not in repr(caller)


async def test_tenants_have_different_salts(node: Node) -> None:
    salts = set()
    for slug in ("pricing", "supply-chain"):
        await node.tenants.create(slug, actor="cli")
        made = await node.keys.create(slug, name="k", actor="cli")
        salts.add((await node.keys.authenticate(made.text)).salt)
    assert len(salts) == 2


async def test_a_platform_key_speaks_for_no_tenant(node: Node) -> None:
    made = await node.keys.create(None, name="first", actor="cli")
    caller = await node.keys.authenticate(made.text)
    assert (caller.tenant_id, caller.tenant_slug, caller.scopes) == (None, None, {Scope.ADMIN})


async def test_the_text_of_a_key_is_stored_nowhere(node: Node) -> None:
    made = await node.keys.create(None, name="first", actor="cli")
    secret = made.text.split("_")[2]
    async with node.database.read() as connection:
        rows = [*(await connection.execute(select(keys))), *(await connection.execute(select(audit)))]
    assert made.key.id in str(rows)
    assert secret not in str(rows)
    assert secret[:43] not in repr(made)


@pytest.mark.parametrize(
    "text",
    [None, "", "tnr_", "Bearer", KEY[:-1], KEY + "0", KEY.upper(), "tnr_\0", "é" * 70],
    ids=["none", "empty", "prefix", "word", "short", "long", "upper case", "zero byte", "no ASCII"],
)
async def test_malformed_keys_are_refused_without_a_query(node: Node, text: str | None, registry_url: str) -> None:
    with recorded_statements(registry_url) as statements, pytest.raises(Unauthenticated):
        await node.keys.authenticate(text)
    assert statements == []


async def test_every_refusal_reads_the_same(node: Node, clock: SettableClock) -> None:
    await node.tenants.create("pricing", actor="cli")
    await node.tenants.create("closed", actor="cli")
    await node.tenants.create("gone", actor="cli")
    revoked = await node.keys.create("pricing", name="revoked", actor="cli")
    expired = await node.keys.create("pricing", name="expired", expires_in_s=10, actor="cli")
    disabled = await node.keys.create("closed", name="disabled", actor="cli")
    deleted = await node.keys.create("gone", name="deleted", actor="cli")
    for made in (revoked, expired, disabled, deleted):
        await node.keys.authenticate(made.text)
    await node.keys.revoke("pricing", revoked.key.id, actor="cli")
    await node.tenants.update("closed", disabled=True, actor="cli")
    await node.tenants.delete("gone", actor="cli")
    clock.advance(10)
    refused = [None, KEY, revoked.text, expired.text, disabled.text, deleted.text]
    messages = set()
    for text in refused:
        with pytest.raises(Unauthenticated) as caught:
            await node.keys.authenticate(text)
        messages.add(str(caught.value))
    assert len(messages) == 1


async def test_a_wrong_secret_costs_the_query_of_a_hit(node: Node, registry_url: str) -> None:
    made = await node.keys.create(None, name="first", actor="cli")
    other = KeyService(node.database, KeyHasher(Peppers(b"another")), CallerCache())
    with recorded_statements(registry_url) as of_wrong, pytest.raises(Unauthenticated):
        await other.authenticate(made.text)
    with recorded_statements(registry_url) as of_unknown, pytest.raises(Unauthenticated):
        await node.keys.authenticate(KEY)
    with recorded_statements(registry_url) as of_hit:
        await node.keys.authenticate(made.text)
    assert of_wrong == of_unknown == of_hit
    assert len(of_hit) == 1


async def test_of_a_key_that_is_refused_no_row_is_read(node: Node, clock: SettableClock) -> None:
    """Read no row for a refused key. A row takes longer than a miss, so the timing would reveal a known key id."""
    made = await node.keys.create(None, name="first", expires_in_s=60, actor="cli")
    right = await hash_of(node, made.key.id)

    async def read(hash_: str) -> object:
        return await node.database.lookup(lambda one: find_credential(one, made.key.id, [hash_], clock.now))

    assert await read(right) is not None
    assert await read(KeyHasher(Peppers(b"another")).hash(made.text)) is None
    clock.advance(60)
    assert await read(right) is None
    clock.advance(-60)
    await node.keys.revoke(None, made.key.id, actor="cli")
    assert await read(right) is None


async def hash_of(node: Node, key_id: str) -> str:
    async with node.database.read() as connection:
        return str(await connection.scalar(select(keys.c.hmac).where(keys.c.id == key_id)))


async def test_a_key_works_until_the_moment_it_expires(node: Node, clock: SettableClock) -> None:
    made = await node.keys.create(None, name="first", expires_in_s=60, actor="cli")
    assert made.key.expires_at == clock.now + timedelta(seconds=60)
    clock.advance(59.5)
    await node.keys.authenticate(made.text)
    # Cached callers expire too.
    clock.advance(0.5)
    with pytest.raises(Unauthenticated):
        await node.keys.authenticate(made.text)


async def test_revocation_reaches_other_nodes_within_a_second(
    node: Node, other_node: Node, clock: SettableClock
) -> None:
    made = await node.keys.create(None, name="first", actor="cli")
    await node.keys.authenticate(made.text)
    await other_node.keys.authenticate(made.text)
    await node.keys.revoke(None, made.key.id, actor="cli")
    with pytest.raises(Unauthenticated):
        await node.keys.authenticate(made.text)
    clock.advance(1)
    with pytest.raises(Unauthenticated):
        await other_node.keys.authenticate(made.text)


async def test_a_disabled_tenants_keys_stop_until_it_is_enabled(
    node: Node, other_node: Node, clock: SettableClock
) -> None:
    await node.tenants.create("pricing", actor="cli")
    made = await node.keys.create("pricing", name="till", actor="cli")
    await other_node.keys.authenticate(made.text)
    await node.tenants.update("pricing", disabled=True, actor="cli")
    clock.advance(1)
    for place in (node, other_node):
        with pytest.raises(Unauthenticated):
            await place.keys.authenticate(made.text)
    await node.tenants.update("pricing", disabled=False, actor="cli")
    # Refusals are not cached, so the keys work again at once.
    for place in (node, other_node):
        await place.keys.authenticate(made.text)


async def test_a_remembered_key_costs_no_query(node: Node, clock: SettableClock, registry_url: str) -> None:
    made = await node.keys.create(None, name="first", actor="cli")
    first = await node.keys.authenticate(made.text)
    with recorded_statements(registry_url) as statements:
        assert await node.keys.authenticate(made.text) == first
    assert statements == []
    clock.advance(1)
    with recorded_statements(registry_url) as statements:
        await node.keys.authenticate(made.text)
    assert len(statements) == 1


async def test_a_key_that_many_show_at_once_costs_one_query(node: Node, registry_url: str) -> None:
    made = await node.keys.create(None, name="first", actor="cli")
    with recorded_statements(registry_url) as statements:
        callers = await asyncio.gather(*(node.keys.authenticate(made.text) for _ in range(5)))
    assert len(statements) == 1
    assert len(set(callers)) == 1


async def test_a_lookup_during_a_change_is_not_cached(node: Node, clock: SettableClock) -> None:
    made = await node.keys.create(None, name="first", actor="cli")
    caller = await node.keys.authenticate(made.text)
    cache = CallerCache(monotonic=clock.monotonic)
    begun = cache.begin()
    cache.clear()
    cache.put(begun, "hash", caller, None)
    assert cache.get("hash", clock.now) is None
    cache.put(cache.begin(), "hash", caller, None)
    assert cache.get("hash", clock.now) is caller


async def test_the_memory_of_callers_is_bounded(node: Node, clock: SettableClock) -> None:
    made = await node.keys.create(None, name="first", actor="cli")
    caller = await node.keys.authenticate(made.text)
    cache = CallerCache(capacity=2, monotonic=clock.monotonic)
    for hash_ in ("a", "b", "c"):
        cache.put(cache.begin(), hash_, caller, None)
    assert [cache.get(hash_, clock.now) for hash_ in ("a", "b", "c")] == [None, caller, caller]


async def test_a_rotated_key_works_through_its_grace_period(node: Node, clock: SettableClock) -> None:
    await node.tenants.create("pricing", actor="cli")
    old = await node.keys.create("pricing", name="till", scopes=["usage:read"], expires_in_s=86400, actor="cli")
    clock.advance(3600)
    new = await node.keys.rotate("pricing", old.key.id, grace_s=600, actor="cli")
    assert (new.key.name, new.key.scopes, new.key.tenant) == ("till", (Scope.USAGE_READ,), "pricing")
    assert new.key.expires_at == clock.now + timedelta(days=1)
    for made in (old, new):
        await node.keys.authenticate(made.text)
    clock.advance(600)
    with pytest.raises(Unauthenticated):
        await node.keys.authenticate(old.text)
    await node.keys.authenticate(new.text)


async def test_a_rotation_never_makes_the_old_key_live_longer(node: Node, clock: SettableClock) -> None:
    old = await node.keys.create(None, name="first", expires_in_s=60, actor="cli")
    await node.keys.rotate(None, old.key.id, grace_s=3600, actor="cli")
    clock.advance(60)
    with pytest.raises(Unauthenticated):
        await node.keys.authenticate(old.text)


async def test_a_rotation_without_grace_ends_the_old_key_at_once(node: Node) -> None:
    old = await node.keys.create(None, name="first", actor="cli")
    await node.keys.authenticate(old.text)
    new = await node.keys.rotate(None, old.key.id, grace_s=0, actor="cli")
    with pytest.raises(Unauthenticated):
        await node.keys.authenticate(old.text)
    assert new.key.expires_at is None
    with pytest.raises(Conflict, match="has ended"):
        await node.keys.rotate(None, old.key.id, actor="cli")


async def test_a_revoked_key_stays_revoked_and_is_not_rotated(node: Node, clock: SettableClock) -> None:
    made = await node.keys.create(None, name="first", actor="cli")
    await node.keys.revoke(None, made.key.id, actor="cli")
    ended = clock.now
    clock.advance(60)
    await node.keys.revoke(None, made.key.id, actor="cli")
    (listed,) = (await node.keys.list(None)).data
    assert listed.revoked_at == ended
    with pytest.raises(Conflict, match="has ended"):
        await node.keys.rotate(None, made.key.id, actor="cli")


async def test_keys_of_others_are_like_keys_that_never_were(node: Node) -> None:
    for slug in ("pricing", "supply-chain"):
        await node.tenants.create(slug, actor="cli")
    made = await node.keys.create("pricing", name="till", actor="cli")
    for tenant, key_id in [("supply-chain", made.key.id), (None, made.key.id), ("pricing", "0" * 16), (None, "\0")]:
        with pytest.raises(NotFound, match="There is no key"):
            await node.keys.revoke(tenant, key_id, actor="cli")
        with pytest.raises(NotFound, match="There is no key"):
            await node.keys.rotate(tenant, key_id, actor="cli")
    for tenant in ("unknown", "\0", "A"):
        with pytest.raises(NotFound, match="There is no tenant"):
            await node.keys.create(tenant, name="x", actor="cli")
    await node.keys.authenticate(made.text)


@pytest.mark.parametrize(
    ("tenant", "scopes"),
    [
        ("pricing", ["admin"]),
        ("pricing", ["inference", "admin"]),
        ("pricing", []),
        ("pricing", ["everything"]),
        (None, ["inference"]),
        (None, ["admin", "inference"]),
    ],
)
async def test_scopes_that_a_key_may_not_hold_are_refused(node: Node, tenant: str | None, scopes: list[str]) -> None:
    await node.tenants.create("pricing", actor="cli")
    with pytest.raises(InvalidRequest, match=r"^scopes is .*; it must be a list of one or more of") as caught:
        await node.keys.create(tenant, name="k", scopes=scopes, actor="cli")
    assert caught.value.param == "scopes"


@pytest.mark.parametrize("name", ["", "a" * 101, "a\0b", "line\nbreak", "\ud800"])
async def test_names_that_no_database_could_keep_are_refused(node: Node, name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^name is .*; it must be") as caught:
        await node.keys.create(None, name=name, actor="cli")
    assert caught.value.param == "name"


@pytest.mark.parametrize("seconds", [-1, 0, 10**30])
async def test_lifetimes_out_of_bounds_are_refused(node: Node, seconds: int) -> None:
    with pytest.raises(InvalidRequest, match=r"^expires_in_s is .*; it must be"):
        await node.keys.create(None, name="k", expires_in_s=seconds, actor="cli")


@pytest.mark.parametrize("seconds", [-1, 10**30])
async def test_graces_out_of_bounds_are_refused(node: Node, seconds: int) -> None:
    made = await node.keys.create(None, name="k", actor="cli")
    with pytest.raises(InvalidRequest, match=r"^grace_s is .*; it must be"):
        await node.keys.rotate(None, made.key.id, grace_s=seconds, actor="cli")


async def test_lists_show_one_owners_keys_page_by_page(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    made = {(await node.keys.create("pricing", name=f"k{n}", actor="cli")).key for n in range(5)}
    await node.keys.create(None, name="platform", actor="cli")
    seen, cursor = [], None
    while True:
        page = await node.keys.list("pricing", limit=2, cursor=cursor)
        assert len(page.data) <= 2
        seen += page.data
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len(seen) == 5
    assert set(seen) == made
    assert [key.name for key in (await node.keys.list(None)).data] == ["platform"]


async def test_every_change_leaves_an_audit_row(node: Node, clock: SettableClock) -> None:
    await node.tenants.create("pricing", actor="cli")
    made = await node.keys.create("pricing", name="till", actor="cli")
    new = await node.keys.rotate("pricing", made.key.id, grace_s=60, actor="admin-key")
    await node.keys.revoke("pricing", new.key.id, actor="admin-key")
    statement = select(audit).where(audit.c.action.startswith("key.")).order_by(audit.c.id)
    async with node.database.read() as connection:
        rows = (await connection.execute(statement)).all()
    assert [(row.actor, row.action, row.tenant, row.subject) for row in rows] == [
        ("cli", "key.create", "pricing", made.key.id),
        ("admin-key", "key.rotate", "pricing", made.key.id),
        ("admin-key", "key.create", "pricing", new.key.id),
        ("admin-key", "key.revoke", "pricing", new.key.id),
    ]
    assert rows[0].before is None
    assert rows[0].after["scopes"] == ["inference"]
    assert rows[1].before["expires_at"] is None
    assert rows[1].after["expires_at"] == (clock.now + timedelta(seconds=60)).isoformat()
    assert rows[3].after["revoked_at"] == clock.now.isoformat()
    assert {row.at for row in rows} == {clock.now}
