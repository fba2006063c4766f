"""Sessions of the console on both databases: their ends, their rights, and what is stored."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from app.database.tables import audit, sessions
from app.domain.access import Caller, Scope
from app.domain.errors import NotFound, TooManyOpen, Unauthenticated
from app.services.access.key_format import KeyHasher
from app.services.access.key_watch import KeyWatch
from app.services.access.peppers import Peppers
from app.services.access.sessions import IDLE, LIFETIME, MOST_OF_KEY, SIGN_INS, SessionService
from tests.support.registry import PEPPERS, Node, SettableClock

pytest_plugins = ("tests.support.registry_fixtures",)


async def caller_of(node: Node, **options: Any) -> Caller:
    if not (await node.tenants.list()).data:
        await node.tenants.create("pricing", actor="cli")
    made = await node.keys.create("pricing", name="laptop", actor="cli", **options)
    return await node.keys.authenticate(made.text)


async def begin(node: Node, caller: Caller, **options: Any) -> str:
    token = (await node.sessions.begin(caller, **options)).token
    assert token is not None
    return token


async def is_open(node: Node, token: str) -> bool:
    try:
        await node.sessions.authenticate(token)
    except Unauthenticated:
        return False
    return True


async def test_a_session_has_the_rights_of_its_key(node: Node) -> None:
    restrictions = {"adapters": ["prices"], "addresses": ["10.0.0.0/8"], "limits": {"tokens_per_day": 7}}
    caller = await caller_of(node, scopes=["usage:read"], restrictions=restrictions)
    found = await node.sessions.authenticate(await begin(node, caller))
    assert (found.key_id, found.tenant_slug, found.scopes) == (caller.key_id, "pricing", {Scope.USAGE_READ})
    assert (found.restrictions, found.salt, found.limits) == (caller.restrictions, caller.salt, caller.limits)
    assert found.session is not None
    assert caller.session is None


async def test_only_a_hash_of_the_token_is_stored(node: Node) -> None:
    token = await begin(node, await caller_of(node))
    async with node.database.read() as connection:
        (row,) = (await connection.execute(select(sessions))).all()
        (audited,) = (await connection.execute(select(audit).where(audit.c.action == "session.begin"))).all()
    assert row.hmac == KeyHasher(PEPPERS).hash(token)
    assert token not in repr(row) + repr(audited)
    assert len(token) == 47
    assert 64**43 > 2**256


async def test_a_session_without_requests_ends_after_an_hour(node: Node, clock: SettableClock) -> None:
    token = await begin(node, await caller_of(node))
    for _ in range(3):
        clock.advance(IDLE.total_seconds() - 1)
        assert await is_open(node, token)
    clock.advance(IDLE.total_seconds())
    assert not await is_open(node, token)


async def test_no_session_lasts_longer_than_its_lifetime(node: Node, clock: SettableClock) -> None:
    token = await begin(node, await caller_of(node))
    for _ in range(int(LIFETIME / timedelta(minutes=30)) - 1):
        clock.advance(1800)
        assert await is_open(node, token)
    clock.advance(1800)
    assert not await is_open(node, token)


async def test_a_session_never_outlives_its_key(node: Node, clock: SettableClock) -> None:
    token = await begin(node, await caller_of(node, expires_in_s=600))
    clock.advance(599)
    assert await is_open(node, token)
    clock.advance(1)
    assert not await is_open(node, token)


@pytest.mark.parametrize("end", ["signed out", "revoked", "rotated", "disabled", "deleted"])
async def test_a_session_ends_at_once_on_its_node(node: Node, other_node: Node, end: str) -> None:
    caller = await caller_of(node)
    token, other = await begin(node, caller), await begin(node, await caller_of(node))
    assert await is_open(other_node, token)
    if end == "signed out":
        await node.sessions.end(await node.sessions.authenticate(token))
    elif end == "revoked":
        await node.keys.revoke("pricing", caller.key_id, actor="cli")
    elif end == "rotated":
        await node.keys.rotate("pricing", caller.key_id, grace_s=0, actor="cli")
    elif end == "disabled":
        await node.tenants.update("pricing", disabled=True, actor="cli")
    else:
        await node.tenants.delete("pricing", actor="cli")
    assert not await is_open(node, token)
    assert await is_open(node, other) == (end in {"signed out", "revoked", "rotated"})
    other_node.clock.advance(1)
    assert not await is_open(other_node, token)


async def test_a_revoked_key_leaves_no_session(node: Node) -> None:
    caller = await caller_of(node)
    await begin(node, caller)
    await node.keys.revoke("pricing", caller.key_id, actor="cli")
    async with node.database.read() as connection:
        assert await connection.scalar(select(func.count()).select_from(sessions)) == 0
    with pytest.raises(Unauthenticated):
        await node.sessions.begin(caller)


async def test_a_new_session_replaces_that_of_the_same_browser(node: Node) -> None:
    caller = await caller_of(node)
    first = await begin(node, caller)
    assert await is_open(node, first)
    second = await begin(node, caller, replaced=first)
    assert [await is_open(node, token) for token in (first, second)] == [False, True]
    await begin(node, caller, replaced="tns_nothing")


async def test_a_key_has_a_bounded_number_of_sessions(node: Node, clock: SettableClock) -> None:
    caller = await caller_of(node)
    tokens = []
    for _ in range(MOST_OF_KEY + 2):
        clock.advance(1)
        tokens.append(await begin(node, caller))
    assert [await is_open(node, token) for token in tokens[:3]] == [False, False, True]
    assert await is_open(node, tokens[-1])


@pytest.mark.parametrize(
    "token", ["", "tns_", "tns_" + "a" * 43, "tns_" + "a" * 42 + "\n", "tnr_" + "a" * 43, "é" * 47]
)
async def test_other_tokens_open_nothing(node: Node, token: str) -> None:
    await begin(node, await caller_of(node))
    assert not await is_open(node, token)


async def test_a_key_is_no_session_and_a_token_no_key(node: Node) -> None:
    caller = await caller_of(node)
    token = await begin(node, caller)
    with pytest.raises(Unauthenticated):
        await node.keys.authenticate(token)
    for use in (node.sessions.show, node.sessions.end):
        with pytest.raises(NotFound, match="no session"):
            await use(caller)


async def test_sessions_work_under_an_earlier_pepper(node: Node) -> None:
    caller = await caller_of(node)
    token = await begin(node, caller)
    hasher = KeyHasher(Peppers(b"a newer pepper of the tests, 32 bytes", (PEPPERS.current,)))
    newer = SessionService(node.database, hasher, node.cache, node.keys.uses, clock=node.clock)
    assert (await newer.authenticate(token)).key_id == caller.key_id


async def test_ended_sessions_are_swept(node: Node, clock: SettableClock) -> None:
    caller = await caller_of(node)
    await begin(node, caller)
    clock.advance(IDLE.total_seconds())
    await begin(node, caller)
    await node.sessions.sweep()
    async with node.database.read() as connection:
        assert await connection.scalar(select(func.count()).select_from(sessions)) == 1


async def test_requests_in_progress_end_with_their_session(node: Node, other_node: Node) -> None:
    caller = await caller_of(node)
    opened = await node.sessions.authenticate(await begin(node, caller))
    watch, begun = KeyWatch(node.database, clock=node.clock), asyncio.Barrier(3)

    async def work(session: str | None) -> None:
        async with watch.holding(caller.key_id, session):
            await begun.wait()
            await asyncio.Event().wait()

    of_session, of_key = (asyncio.create_task(work(session)) for session in (opened.session, None))
    await begun.wait()
    await watch.check()
    await other_node.sessions.end(opened)
    await watch.check()
    with pytest.raises(Unauthenticated):
        await of_session
    assert not of_key.done()
    of_key.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await of_key


async def test_a_key_cannot_sign_in_endlessly(node: Node) -> None:
    first, second = await caller_of(node), await caller_of(node)
    for _ in range(SIGN_INS):
        await begin(node, first)
    with pytest.raises(TooManyOpen) as refused:
        await begin(node, first)
    assert refused.value.retry_after == 60
    await begin(node, second)


async def test_an_end_leaves_other_callers_in_the_cache(node: Node) -> None:
    caller = await caller_of(node)
    ending, staying = await begin(node, caller), await begin(node, caller)
    session, other = await node.sessions.authenticate(ending), await node.sessions.authenticate(staying)
    await node.sessions.end(session)
    assert not await is_open(node, ending)
    assert await node.sessions.authenticate(staying) is other
