"""Pepper rotation: keys made under the old pepper stay valid while that pepper is accepted."""

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from app.database.tables import keys
from app.domain.errors import IdempotencyConflict, IdempotencyInProgress, RegistryUnavailable, Unauthenticated
from app.services.access.audit import AuditService
from app.services.access.caller_cache import CallerCache
from app.services.access.idempotency import KEPT_FOR, STALE_AFTER, Answer, IdempotencyService, Kept, Reservation
from app.services.access.key_format import KeyHasher
from app.services.access.keys import KeyService
from app.services.access.peppers import Peppers
from tests.support.registry import Node, recorded_statements

pytest_plugins = ("tests.support.registry_fixtures",)

_OLD, _NEW, _OTHER = (f"the {name} pepper of the tests, which is long enough".encode() for name in ("old", "new", "x"))
#: Settings of each round. All servers know both peppers before the first server uses the new one.
BEFORE, FIRST, SECOND, AFTER = Peppers(_OLD), Peppers(_OLD, (_NEW,)), Peppers(_NEW, (_OLD,)), Peppers(_NEW)
STRANGER = Peppers(_OTHER)
ACTOR, REQUEST = "A" * 16, "1" * 64
ANSWER = Answer(201, (("content-type", "application/json"),), b"{}")
SETTLED = timedelta(minutes=5)


def key_service(node: Node, peppers: Peppers) -> KeyService:
    """Return the key service of a freshly started server with these peppers."""
    return KeyService(node.database, KeyHasher(peppers), CallerCache(), clock=node.clock)


async def works(node: Node, peppers: Peppers, text: str) -> bool:
    try:
        return bool(await key_service(node, peppers).authenticate(text))
    except Unauthenticated:
        return False


async def kept_hash(node: Node, key_id: str) -> str:
    async with node.database.read() as connection:
        return str(await connection.scalar(select(keys.c.hmac).where(keys.c.id == key_id)))


async def test_a_key_that_is_used_goes_over_to_the_new_pepper(node: Node) -> None:
    used, unused = [await key_service(node, BEFORE).create(None, name=name, actor="cli") for name in ("a", "b")]
    assert not await works(node, AFTER, used.text)
    assert await works(node, FIRST, used.text)
    assert await kept_hash(node, used.key.id) == KeyHasher(BEFORE).hash(used.text)
    assert await works(node, SECOND, used.text)
    assert await kept_hash(node, used.key.id) == KeyHasher(AFTER).hash(used.text)
    assert [await works(node, AFTER, one.text) for one in (used, unused)] == [True, False]
    assert not await works(node, BEFORE, used.text)


async def test_servers_of_both_rounds_serve_keys_of_both(node: Node) -> None:
    for made_by in (FIRST, SECOND):
        made = await key_service(node, made_by).create(None, name="x", actor="cli")
        assert [await works(node, peppers, made.text) for peppers in (FIRST, SECOND, FIRST)] == [True] * 3


async def test_who_cannot_write_is_let_in_all_the_same(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await key_service(node, BEFORE).create(None, name="x", actor="cli")

    def refuse() -> None:
        raise RegistryUnavailable("the registry is read-only")

    with monkeypatch.context() as patch:
        patch.setattr(node.database, "write", refuse)
        assert await works(node, SECOND, made.text)
    assert not await works(node, AFTER, made.text)
    assert await works(node, SECOND, made.text)
    assert await works(node, AFTER, made.text)


async def test_more_peppers_are_no_more_queries(node: Node, registry_url: str) -> None:
    made = await key_service(node, AFTER).create(None, name="x", actor="cli")
    with recorded_statements(registry_url) as of_hit:
        assert await works(node, SECOND, made.text)
    with recorded_statements(registry_url) as of_wrong:
        assert not await works(node, Peppers(_OTHER, (_OLD,)), made.text)
    assert of_hit == of_wrong
    assert len(of_hit) == 1


def audit_service(node: Node, folder: Path, peppers: Peppers) -> AuditService:
    return AuditService(node.database, peppers, folder / "audit-seal", clock=node.clock)


async def sealed(node: Node, folder: Path, peppers: Peppers) -> None:
    await node.tenants.create(f"unit-{node.clock.now.timestamp():.0f}", actor="cli")
    node.clock.advance(SETTLED.total_seconds())
    assert await audit_service(node, folder, peppers).seal() == 1


async def test_seals_under_both_are_one_trail(node: Node, tmp_path: Path) -> None:
    for peppers in (BEFORE, FIRST, SECOND, FIRST, SECOND):
        await sealed(node, tmp_path, peppers)
    for peppers in (FIRST, SECOND):
        assert (await audit_service(node, tmp_path, peppers).verify()).problems == ()
    for peppers, wrong in ((BEFORE, 2), (AFTER, 3), (STRANGER, 5)):
        assert len((await audit_service(node, tmp_path, peppers).verify()).problems) == wrong


async def test_a_trail_trimmed_under_the_old_pepper_verifies(node: Node, tmp_path: Path) -> None:
    for _ in range(2):
        await sealed(node, tmp_path, BEFORE)
    service = audit_service(node, tmp_path, BEFORE)
    assert await service.trim(node.clock.now - SETTLED) == 1
    assert (await audit_service(node, tmp_path, SECOND).verify()).problems == ()
    assert (await audit_service(node, tmp_path, STRANGER).verify()).problems != ()
    assert await audit_service(node, tmp_path, SECOND).trim(node.clock.now) == 1
    assert (await audit_service(node, tmp_path, AFTER).verify()).problems == ()


def idempotency(node: Node, peppers: Peppers) -> IdempotencyService:
    return IdempotencyService(node.database, peppers, clock=node.clock)


async def reserved(node: Node, peppers: Peppers) -> Reservation:
    found = await idempotency(node, peppers).reserve(ACTOR, "k")
    assert isinstance(found, Reservation)
    return found


async def test_a_request_is_not_done_again_because_the_pepper_changed(node: Node) -> None:
    await idempotency(node, BEFORE).settle(await reserved(node, BEFORE), REQUEST, ANSWER)
    for peppers in (FIRST, SECOND):
        service = idempotency(node, peppers)
        kept = await service.reserve(ACTOR, "k")
        assert isinstance(kept, Kept)
        assert kept.answer == ANSWER
        service.check(kept, REQUEST)
        with pytest.raises(IdempotencyConflict):
            service.check(kept, "2" * 64)
    node.clock.advance(KEPT_FOR.total_seconds())
    await reserved(node, SECOND)


async def test_a_request_of_the_other_round_is_waited_for(node: Node) -> None:
    for peppers, other in ((FIRST, SECOND), (SECOND, FIRST)):
        await reserved(node, peppers)
        with pytest.raises(IdempotencyInProgress):
            await idempotency(node, other).reserve(ACTOR, "k")
        node.clock.advance(STALE_AFTER.total_seconds())
