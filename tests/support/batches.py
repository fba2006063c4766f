"""Batches over the registry of the contract tests: a scripted engine, servers that run batches, and their output."""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from adapters.stores import open_store
from adapters.stores.base import BlobStore
from app.database import batch_chunks, batches, files
from app.database.session import Database
from app.domain.adapters import Version
from app.domain.batches import Batch, BatchOptions, BatchState, BatchUsage, Chunk, ChunkState, LinePlace
from app.domain.files import Purpose, StoredFile
from app.engine.port import Answer, EngineRequest, TokenUsage
from app.engine.status import EngineState
from app.services.batches.finishing import Finisher
from app.services.batches.line_runner import LineRunner
from app.services.batches.runner import BatchRunner
from app.services.files.contents import FileContents
from app.services.limits.accounts import Accounts
from app.services.limits.memory import MemoryAccounts
from app.services.limits.shared import SharedAccounts
from app.services.prompts.tokens import PromptTokens
from app.services.publishing.blobs import BlobService
from app.services.serving.checked_bodies import BodyChecks
from app.services.serving.inference import InferenceService
from app.services.usage.journal import Journal
from app.services.usage.ledger import Ledger
from app.settings import Settings
from app.support.periodic import Periodic
from tests.support.inference import inference_service
from tests.support.registry import Node
from tests.support.serving import NoEngine

COMPLETIONS = "/v1/completions"
WINDOW = 16
_SHIPPED_EVERY_S = 0.3


class AnsweringEngine(NoEngine):
    """Engine that answers completions with the version and the prompt.

    Attributes:
        before: called with each request before its answer; it may raise an error.
        may: answers wait for this event.
        asked: number of attempts by request id.
        most: most requests in flight at once.
    """

    def __init__(self, window: int = WINDOW) -> None:
        super().__init__()
        self.state = EngineState.READY
        self.shown = replace(self.shown, status=replace(self.shown.status, window=window))
        self.before: Callable[[EngineRequest], object] = lambda _: None
        self.may = asyncio.Event()
        self.may.set()
        self.asked = Counter[str]()
        self.order: list[EngineRequest] = []
        self.running = self.most = 0

    async def answer(self, request: EngineRequest) -> Answer:
        self.asked[request.request_id] += 1
        self.order.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            await self.may.wait()
            self.before(request)
        finally:
            self.running -= 1
        prompt = request.body["prompt"]
        tokens = TokenUsage(len(prompt), 0, 1 + len(prompt) % 3, ttft_s=0.1)
        self.usages[request.request_id] = tokens
        version = request.adapter.version_id if request.adapter else 0
        choice = {"index": 0, "text": f"{version}:{prompt}", "finish_reason": "stop"}
        usage = {"prompt_tokens": tokens.prompt_tokens, "completion_tokens": tokens.output_tokens}
        return {"object": "text_completion", "model": request.model, "choices": [choice], "usage": usage}


def store_in(folder: Path) -> BlobStore:
    return open_store(f"file://{folder}/blobs", endpoint_url=None, region=None)


class WatchedRunner(BatchRunner):
    """Runner whose looks at the batches a test can await."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._surveys = self._acted_on = 0
        self._stepped = asyncio.Condition()

    async def supervise(self) -> None:
        await super().supervise()
        self._surveys += 1

    async def step(self) -> None:
        await super().step()
        async with self._stepped:
            self._acted_on = self._surveys
            self._stepped.notify_all()

    async def looked(self, times: int = 2) -> None:
        """Wait until the runner has looked at all batches this often, and done what was due."""
        async with asyncio.timeout(60), self._stepped:
            target = self._surveys + times
            await self._stepped.wait_for(lambda: self._acted_on >= target)


@dataclass
class Server:
    """A server that runs batches.

    Attributes:
        runner: None after a crash.
    """

    node: Node
    store: BlobStore
    home: Path
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)
    engine: AnsweringEngine = field(default_factory=AnsweringEngine)
    lost_s: float = 30.0
    runner: WatchedRunner = field(init=False)
    inference: InferenceService = field(init=False)
    ledger: Ledger = field(init=False)
    contents: FileContents = field(init=False)
    accounts: Accounts = field(init=False)
    _shipping: Periodic = field(init=False)

    async def start(self) -> None:
        """Start the parts that batches need, as a new process would."""
        node, settings = self.node, Settings()
        blobs = BlobService(node.database, self.store, self.identity, clock=node.clock)
        self.contents = FileContents(
            node.database, self.store, blobs, self.home / "files", most_bytes=10**9, clock=node.clock
        )
        await asyncio.to_thread(self.contents.start)
        self.ledger = Ledger(node.database, Journal(self.home / "usage"))
        await self.ledger.open()
        await self.ledger.ship()
        self.accounts = (
            SharedAccounts(node.database, self.identity)
            if node.database.is_postgresql
            else MemoryAccounts(node.database, clock=node.clock)
        )
        await self.accounts.restore()
        self.inference = inference_service(node, self.engine, settings, ledger=self.ledger, accounts=self.accounts)
        checks = BodyChecks(settings, PromptTokens(None, context=64))
        finisher = Finisher(
            node.database, self.store, self.contents, node=self.identity, lease_s=60.0, clock=node.clock
        )
        self.runner = WatchedRunner(
            node.database,
            self.engine,
            LineRunner(self.inference, checks, weight=0.01),
            finisher,
            self.contents,
            self.ledger,
            node=self.identity,
            lost_s=self.lost_s,
            window_share=0.5,
            clock=node.clock,
        )
        await self.runner.open()
        self.runner.start()
        self._shipping = Periodic("usage", _SHIPPED_EVERY_S, lambda: self.ledger.ship())
        self._shipping.start()

    async def kill(self) -> None:
        """End the process without any of its last steps: tasks stop, locks go, files stay."""
        runner = self.runner
        await self._shipping.stop()
        # Threads cannot be killed, so the journal's must not be at work.
        async with self.ledger._shipping:
            runner.leave()
            await runner.halt()
            await asyncio.gather(*(chunk.abort() for chunk in runner.workload.chunks.values()))
        await self.ledger._journal.close()

    async def stop(self) -> None:
        await self._shipping.stop()
        await self.runner.stop()
        await self.ledger.close()
        await self.accounts.close()


@dataclass(frozen=True)
class Owner:
    """A tenant with a key that creates batches."""

    slug: str
    tenant_id: int
    key_id: str


async def owner(node: Node, slug: str, **limits: Any) -> Owner:
    tenant = await node.tenants.create(slug, actor="cli")
    key = await node.keys.create(slug, name="batches", scopes=["inference", "batch"], actor="cli")
    if limits:
        await node.tenants.update(slug, limits=limits, actor="cli")
    return Owner(slug, tenant.id, key.key.id)


def line(custom_id: str, prompt: str, endpoint: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    """Build a line of an input file."""
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": endpoint,
        "body": {"prompt": prompt, "max_tokens": 8, **body},
    }


async def created(
    server: Server,
    owner: Owner,
    lines: Sequence[Mapping[str, Any]],
    versions: Mapping[str, Version | None],
    *,
    at_once: int = 256,
    window_s: float = 3600.0,
    width: int | None = None,
    folder: Path,
) -> Batch:
    """Store an input file and a batch that is validated: chunks by version, lines in order.

    Args:
        versions: version by the ``model`` of lines; None for the base.
        at_once: lines per chunk.
    """
    node = server.node
    path = folder / f"{uuid.uuid4().hex}.jsonl"
    texts = [json.dumps(one).encode() + b"\n" for one in lines]
    path.write_bytes(b"".join(texts))
    now = node.clock()
    file = await server.contents.put(
        path,
        tenant_id=owner.tenant_id,
        purpose=Purpose.BATCH,
        filename="input.jsonl",
        created_by=owner.key_id,
        expires_at=now + timedelta(days=30),
    )
    batch = _batch(owner, file.id, str(lines[0]["url"]), now, window_s=window_s, width=width)
    async with node.database.write() as connection:
        await batches.insert_batch(connection, batch)
        await batch_chunks.insert_chunks(connection, _chunks(batch.id, lines, texts, versions, at_once))
        await batches.set_state(
            connection,
            batch.id,
            BatchState.IN_PROGRESS,
            expected=[BatchState.VALIDATING],
            at=now,
            values={"total": len(lines)},
        )
    return batch


def _batch(
    owner: Owner, file_id: str, endpoint: str, now: datetime, *, window_s: float = 3600.0, width: int | None = None
) -> Batch:
    return Batch(
        id=f"batch_{uuid.uuid4().hex[:16]}",
        tenant_id=owner.tenant_id,
        state=BatchState.VALIDATING,
        endpoint=endpoint,
        input_file_id=file_id,
        output_file_id=None,
        error_file_id=None,
        completion_window="1h",
        options=BatchOptions(width=width),
        metadata=None,
        output_lifetime_s=86_400,
        errors=None,
        quote=None,
        blocked=None,
        reason=None,
        total=0,
        completed=0,
        failed=0,
        usage=BatchUsage(),
        node=None,
        leased_until=None,
        created_at=now,
        created_by=owner.key_id,
        expires_at=now + timedelta(seconds=window_s),
        times={},
    )


async def inserted(node: Node, owner: Owner, *, lines: int) -> str:
    """Insert the rows of a batch of one chunk, without any bytes; return its id."""
    file = StoredFile(
        id=f"file-{uuid.uuid4().hex}",
        tenant_id=owner.tenant_id,
        purpose=Purpose.BATCH,
        filename="input.jsonl",
        bytes=1,
        sha256="a" * 64,
        digest=uuid.uuid4().hex * 2,
        created_at=node.clock(),
        created_by=owner.key_id,
        expires_at=node.clock() + timedelta(days=1),
    )
    batch = _batch(owner, file.id, COMPLETIONS, node.clock())
    places = tuple(LinePlace(number, 0, 1) for number in range(1, lines + 1))
    async with node.database.write() as connection:
        await files.insert_file(connection, file)
        await batches.insert_batch(connection, batch)
        await batch_chunks.insert_chunks(connection, [Chunk(batch.id, 0, None, "demo", places, ChunkState.WAITING)])
    return batch.id


def _chunks(
    batch_id: str,
    lines: Sequence[Mapping[str, Any]],
    texts: Sequence[bytes],
    versions: Mapping[str, Version | None],
    at_once: int,
) -> Iterable[Chunk]:
    places: dict[str, list[LinePlace]] = {name: [] for name in versions}
    offset = 0
    for number, (one, text) in enumerate(zip(lines, texts, strict=True), 1):
        places[one["body"].get("model", "demo")].append(LinePlace(number, offset, len(text) - 1))
        offset += len(text)
    number = 0
    for name, version in versions.items():
        exact = "demo" if version is None else f"{name}@{version.number}"
        version_id = None if version is None else version.key.version_id
        for start in range(0, len(places[name]), at_once):
            some = tuple(places[name][start : start + at_once])
            yield Chunk(batch_id, number, version_id, exact, some, ChunkState.WAITING)
            number += 1


async def batch_now(database: Database, batch_id: str) -> Batch:
    async with database.read() as connection:
        batch = await batches.find_batch(connection, batch_id)
    assert batch is not None
    return batch


async def until_state(database: Database, batch_id: str, *states: BatchState) -> Batch:
    """Wait until a batch is in one of these states."""
    return await until(database, batch_id, lambda batch: batch.state in states)


async def until(database: Database, batch_id: str, satisfied: Callable[[Batch], bool], seconds: float = 60) -> Batch:
    async with asyncio.timeout(seconds):
        while not satisfied(batch := await batch_now(database, batch_id)):
            await asyncio.sleep(0.02)
    return batch


async def content(server: Server, batch: Batch, file_id: str | None) -> list[dict[str, Any]]:
    """Return the lines of a file of a batch; none for a file that does not exist."""
    if file_id is None:
        return []
    async with server.node.database.read() as connection:
        file = await files.find_file(connection, batch.tenant_id, file_id)
    assert isinstance(file, StoredFile)
    async with server.contents.open(file) as path:
        return [json.loads(text) for text in path.read_text().splitlines()]


class Servers:
    """Servers of one test; all of them are stopped at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack = folder, AsyncExitStack()
        self.store = store_in(folder)

    async def start(self, node: Node, **options: Any) -> Server:
        server = Server(node, self.store, self._folder / uuid.uuid4().hex, **options)
        await server.start()
        self._stack.push_async_callback(server.stop)
        return server

    async def stop(self) -> None:
        await self._stack.aclose()
