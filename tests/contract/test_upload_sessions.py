"""Resumable uploads in the registry, on both databases, with two concurrent servers."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from adapters.errors import AdapterRejected, Reason, StoreUnavailable
from adapters.stores.base import BlobStore
from adapters.stores.local import LocalStore
from app.database.tables import audit, uploads
from app.domain.errors import Busy, Conflict, EngineUnavailable, NotFound
from app.domain.uploads import UploadState
from app.services.publishing.publishing import Published
from app.services.publishing.refusals import RefusalService
from app.services.publishing.uploads import finishing as finish
from app.services.publishing.uploads.finishing import SILENT, UploadFinisher
from app.services.publishing.uploads.sessions import UploadService
from app.services.publishing.uploads.sweeper import UploadSweeper
from app.services.publishing.uploads.validation import Announced
from app.settings import LimitSettings
from app.support.spool import Spool, SpooledFile, Upload
from tests.support.registry import Node, SettableClock

pytest_plugins = ("tests.support.registry_fixtures",)

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
OPTIONS: dict[str, Any] = {"raw": {}, "admin": False, "uploaded_from": None}
LIMITS = LimitSettings(open_uploads=3)


@dataclass
class Publisher:
    """Fake publisher that replaces validation, engine and rows: publishes or raises when the test allows it."""

    node: Node
    outcome: Exception | None = None
    may: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    uploads: list[Upload] = field(default_factory=list)

    async def publish(self, tenant: str, adapter: str, upload: Upload, _options: Any, *, actor: str) -> Published:
        self.uploads.append(upload)
        self.entered.set()
        await self.may.wait()
        if self.outcome is not None:
            raise self.outcome
        return Published(await self.node.publish(tenant, adapter, "content"), created=True)


@dataclass
class Server:
    """Upload services of one process."""

    uploads: UploadService
    finisher: UploadFinisher
    sweeper: UploadSweeper
    publisher: Publisher


def server(node: Node, store: BlobStore, home: Path) -> Server:
    spool, publisher = Spool(home, places=2, patience_s=5), Publisher(node)
    spool.open()
    publisher.may.set()
    refusals = RefusalService(node.database, clock=node.clock)
    arguments: Any = (node.database, store, spool, publisher, node.adapters, refusals, LIMITS)
    return Server(
        UploadService(node.database, store, LIMITS, clock=node.clock),
        UploadFinisher(*arguments, clock=node.clock),
        UploadSweeper(node.database, store, LIMITS, clock=node.clock),
        publisher,
    )


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "blobs")


@pytest.fixture
async def one(node: Node, store: LocalStore, tmp_path: Path) -> Server:
    await node.tenants.create("pricing", actor="cli")
    await node.tenants.create("supply", actor="cli")
    return server(node, store, tmp_path / "one")


@pytest.fixture
async def other(other_node: Node, store: LocalStore, tmp_path: Path) -> Server:
    return server(other_node, store, tmp_path / "other")


async def begin(at: Server, tenant: str = "pricing") -> str:
    files = {name: Announced(len(data), hashlib.sha256(data).hexdigest()) for name, data in FILES.items()}
    progress = await at.uploads.begin(tenant, "quotes", files, OPTIONS, part_bytes=None, actor="a-key")
    return progress.session.id


async def send(at: Server, upload: str, folder: Path) -> str:
    for name, data in FILES.items():
        path = folder / name
        path.write_bytes(data)
        part = SpooledFile(path, hashlib.sha256(data).hexdigest(), len(data))
        await at.uploads.put_part("pricing", "quotes", upload, name, 1, part)
        path.unlink()
    return upload


async def state(at: Server, upload: str) -> UploadState:
    return (await at.uploads.find("pricing", "quotes", upload)).state


async def actions(node: Node) -> list[str]:
    async with node.database.read() as connection:
        rows = await connection.scalars(select(audit.c.action).order_by(audit.c.id))
        return [action for action in rows if action.startswith("upload.")]


async def test_what_one_server_begins_another_finishes(one: Server, other: Server, node: Node, tmp_path: Path) -> None:
    upload = await send(other, await begin(one), tmp_path)
    published = await other.finisher.finish("pricing", "quotes", upload)
    assert (published.created, published.version.number) == (True, 1)
    again = await one.finisher.finish("pricing", "quotes", upload)
    assert (again.created, again.version.number) == (False, 1)
    [files] = other.publisher.uploads
    assert (files.config.digest, files.weights.size) == (hashlib.sha256(b"{}").hexdigest(), 7)
    assert one.publisher.uploads == []
    assert await actions(node) == ["upload.begin", "upload.done"]


async def test_one_of_two_servers_finishes(one: Server, other: Server, tmp_path: Path) -> None:
    upload = await send(one, await begin(one), tmp_path)
    outcomes = await asyncio.gather(
        *(at.finisher.finish("pricing", "quotes", upload) for at in (one, other, one, other)), return_exceptions=True
    )
    published = [outcome for outcome in outcomes if isinstance(outcome, Published)]
    assert len(one.publisher.uploads) + len(other.publisher.uploads) == 1
    assert {outcome.version.number for outcome in published} == {1}
    assert all(isinstance(outcome, Published | Conflict) for outcome in outcomes)


async def test_a_slow_finish_keeps_its_claim_and_a_dead_one_loses_it(
    one: Server, other: Server, clock: SettableClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "HEARTBEAT_S", 0.005)
    upload = await send(one, await begin(one), tmp_path)
    one.publisher.may.clear()
    slow = asyncio.create_task(one.finisher.finish("pricing", "quotes", upload))
    await one.publisher.entered.wait()
    for _ in range(3):
        clock.advance(SILENT.total_seconds() / 2)
        before = clock()
        while (await one.uploads.find("pricing", "quotes", upload)).updated_at < before:
            await asyncio.sleep(0.005)
        with pytest.raises(Conflict, match="already being finished"):
            await other.finisher.finish("pricing", "quotes", upload)
    # The server stops without a heartbeat.
    monkeypatch.setattr(finish, "HEARTBEAT_S", 3600)
    await asyncio.sleep(0.05)
    clock.advance(SILENT.total_seconds() + 1)
    taken_over = await other.finisher.finish("pricing", "quotes", upload)
    assert taken_over.version.number == 1
    one.publisher.may.set()
    one.publisher.outcome = EngineUnavailable("too late")
    with pytest.raises(EngineUnavailable):
        await slow
    # The late server has not undone it.
    assert await state(one, upload) is UploadState.DONE


@pytest.mark.parametrize(
    "outcome", [EngineUnavailable("it restarts"), StoreUnavailable("no answer"), ValueError("a bug")]
)
async def test_what_is_no_verdict_leaves_it_open(one: Server, tmp_path: Path, outcome: Exception) -> None:
    upload = await send(one, await begin(one), tmp_path)
    one.publisher.outcome = outcome
    with pytest.raises(type(outcome)):
        await one.finisher.finish("pricing", "quotes", upload)
    assert await state(one, upload) is UploadState.OPEN
    one.publisher.outcome = None
    assert (await one.finisher.finish("pricing", "quotes", upload)).version.number == 1


async def test_a_verdict_is_kept_and_told_again(one: Server, other: Server, node: Node, tmp_path: Path) -> None:
    upload = await send(one, await begin(one), tmp_path)
    reason = Reason("rank_too_large", "r", "999", "at most 64")
    one.publisher.outcome = AdapterRejected((reason,))
    for at in (one, other, one):
        with pytest.raises(AdapterRejected) as caught:
            await at.finisher.finish("pricing", "quotes", upload)
        assert caught.value.reasons == (reason,)
    assert len(one.publisher.uploads) == 1
    assert await actions(node) == ["upload.begin", "upload.failed"]


async def test_parts_that_are_missing_are_named(one: Server) -> None:
    upload = await begin(one)
    with pytest.raises(Conflict, match=r"1 of 1 parts of adapter_config.json \(1\)"):
        await one.finisher.finish("pricing", "quotes", upload)
    assert await state(one, upload) is UploadState.OPEN


async def test_the_bound_holds_at_once_and_for_each_tenant(one: Server, other: Server) -> None:
    outcomes = await asyncio.gather(*(begin(at) for at in (one, other, one, other, one, other)), return_exceptions=True)
    assert len([outcome for outcome in outcomes if isinstance(outcome, str)]) == LIMITS.open_uploads
    assert len([outcome for outcome in outcomes if isinstance(outcome, Busy)]) == 3
    assert await begin(one, "supply")


async def test_a_refused_beginning_leaves_nothing_in_the_store(one: Server, other: Server, tmp_path: Path) -> None:
    outcomes = await asyncio.gather(*(begin(at) for at in (one, other) * 3), return_exceptions=True)
    kept = {outcome for outcome in outcomes if isinstance(outcome, str)}
    assert {path.name for path in (tmp_path / "blobs" / "uploads").iterdir()} == kept


async def test_another_tenants_upload_is_none(one: Server, tmp_path: Path) -> None:
    upload = await send(one, await begin(one), tmp_path)
    for call in (
        one.uploads.show("supply", "quotes", upload),
        one.uploads.show("pricing", "other", upload),
        one.finisher.finish("supply", "quotes", upload),
        one.uploads.abort("supply", "quotes", upload, actor="a-key"),
        one.uploads.part_size("supply", "quotes", upload, "adapter_config.json", 1),
    ):
        with pytest.raises(NotFound):
            await call
    assert await one.uploads.list_live("supply", "quotes") == []
    assert [found.id for found in await one.uploads.list_live("pricing", "quotes")] == [upload]


async def test_the_sweepers_of_two_servers_end_what_has_expired(
    one: Server, other: Server, node: Node, clock: SettableClock, tmp_path: Path
) -> None:
    old, stuck = await begin(one), await begin(one)
    one.publisher.may.clear()
    await send(one, stuck, tmp_path)
    finishing = asyncio.create_task(one.finisher.finish("pricing", "quotes", stuck))
    await one.publisher.entered.wait()
    clock.advance(timedelta(hours=LIMITS.upload_hours).total_seconds() - 1)
    young = await begin(other)
    await asyncio.gather(one.sweeper.sweep(), other.sweeper.sweep())
    assert await state(one, old) is UploadState.OPEN
    clock.advance(2)
    await asyncio.gather(one.sweeper.sweep(), other.sweeper.sweep())
    assert (await state(one, old), await state(one, young)) == (UploadState.ABORTED, UploadState.OPEN)
    assert (await actions(node)).count("upload.aborted") == 2
    one.publisher.may.set()
    await asyncio.gather(finishing, return_exceptions=True)
    clock.advance(timedelta(days=8).total_seconds())
    await one.sweeper.sweep()
    await one.sweeper.sweep()
    async with node.database.read() as connection:
        assert set(await connection.scalars(select(uploads.c.id))) <= {young}
