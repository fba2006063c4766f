"""Requests are cancelled when their key ends, on whichever node the key was revoked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from app.domain.errors import RegistryUnavailable, Unauthenticated
from app.services.access.key_watch import KeyWatch
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)

Ending = Callable[[Node, str], Awaitable[object]]


async def revoke(node: Node, key_id: str) -> None:
    await node.keys.revoke("pricing", key_id, actor="cli")


async def let_expire(node: Node, key_id: str) -> None:
    node.clock.advance(3600)


async def rotate_at_once(node: Node, key_id: str) -> None:
    await node.keys.rotate("pricing", key_id, grace_s=0, actor="cli")


async def disable(node: Node, key_id: str) -> None:
    await node.tenants.update("pricing", disabled=True, actor="cli")


@pytest.fixture
def watch(node: Node) -> KeyWatch:
    return KeyWatch(node.database, clock=node.clock)


@contextlib.asynccontextmanager
async def working(watch: KeyWatch, key_id: str) -> AsyncIterator["asyncio.Task[None]"]:
    """Hold a key with work that would never end by itself."""
    begun = asyncio.Event()

    async def work() -> None:
        async with watch.holding(key_id):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    yield task
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Unauthenticated):
        await task


async def tenants(node: Node) -> tuple[str, str]:
    """Ids of two tenants' keys. The first tenant's key expires in an hour."""
    for slug in ("pricing", "neighbour"):
        await node.tenants.create(slug, actor="cli")
    one = await node.keys.create("pricing", name="one", expires_in_s=3600, actor="cli")
    other = await node.keys.create("neighbour", name="other", actor="cli")
    return one.key.id, other.key.id


@pytest.mark.parametrize("end", [revoke, let_expire, rotate_at_once, disable])
async def test_the_work_of_a_key_that_ends_on_another_node_ends(
    node: Node, other_node: Node, watch: KeyWatch, end: Ending
) -> None:
    key_id, neighbour = await tenants(node)
    async with working(watch, key_id) as first, working(watch, key_id) as second, working(watch, neighbour) as third:
        await watch.check()
        assert not watch.ended(key_id)
        await end(other_node, key_id)
        await watch.check()
        for task in (first, second):
            with pytest.raises(Unauthenticated, match="is no longer valid"):
                await task
        assert watch.ended(key_id)
        assert not watch.ended(neighbour)
        await watch.check()
        assert not third.done()


async def test_work_that_ends_slowly_holds_up_nobody(node: Node, watch: KeyWatch) -> None:
    key_id, neighbour = await tenants(node)
    may_end, ending = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        async with watch.holding(key_id):
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await may_end.wait()

    task = asyncio.create_task(slow())
    async with working(watch, neighbour) as other:
        await asyncio.sleep(0)
        await node.keys.revoke("pricing", key_id, actor="cli")
        await watch.check()
        await ending.wait()
        await node.tenants.update("neighbour", disabled=True, actor="cli")
        await watch.check()
        with pytest.raises(Unauthenticated):
            await other
        may_end.set()
        with pytest.raises(Unauthenticated):
            await task


async def test_a_registry_that_does_not_answer_ends_nothing(
    node: Node, watch: KeyWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id, _ = await tenants(node)

    def gone() -> None:
        raise RegistryUnavailable("the registry's database does not answer")

    async with working(watch, key_id) as task:
        with monkeypatch.context() as patch:
            patch.setattr(node.database, "read", gone)
            with pytest.raises(RegistryUnavailable):
                await watch.check()
        await watch.check()
        assert not task.done()


async def test_work_that_is_done_is_not_asked_about(
    node: Node, watch: KeyWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id, _ = await tenants(node)
    async with watch.holding(key_id):
        pass
    with pytest.raises(TimeoutError):
        # A time-out raised by the work itself stays a time-out.
        async with watch.holding(key_id), asyncio.timeout(0):
            await asyncio.Event().wait()

    def asked() -> None:
        raise AssertionError("there is nothing to ask about")

    monkeypatch.setattr(node.database, "read", asked)
    await watch.check()


async def test_a_tenant_that_is_enabled_again_is_served_again(node: Node, watch: KeyWatch) -> None:
    key_id, _ = await tenants(node)
    async with working(watch, key_id) as task:
        await node.tenants.update("pricing", disabled=True, actor="cli")
        await watch.check()
        with pytest.raises(Unauthenticated):
            await task
    await node.tenants.update("pricing", disabled=False, actor="cli")
    async with working(watch, key_id) as task:
        await watch.check()
        assert not task.done()
        assert not watch.ended(key_id)
