"""Services of batches over a node of the registry tests: their files, their admission, and lines of requests."""

import json
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from adapters.stores.local import LocalStore
from app.database import batches
from app.domain.access import Caller, Scope
from app.domain.batches import Batch, BatchState
from app.domain.files import Purpose, StoredFile
from app.services.batches.admission import BatchAdmission
from app.services.batches.service import BatchService, NewBatch
from app.services.batches.validation import Validation, Validator
from app.services.bodies.reading import BodyReader
from app.services.files.contents import FileContents
from app.services.limits.memory import MemoryAccounts
from app.services.limits.prices import PriceService
from app.services.limits.service import LimitService
from app.services.prompts.base_template import BaseTemplate
from app.services.prompts.chat import ChatPrompts
from app.services.prompts.tokens import PromptTokens
from app.services.publishing.blobs import BlobService
from app.services.serving.checked_bodies import BodyChecks
from app.services.serving.preparation import Preparation
from app.services.serving.targets import Targets
from app.settings import BatchSettings, Settings
from tests.support.inference import TEMPLATE
from tests.support.registry import Node
from tests.support.word_tokenizer import word_tokenizer

CHAT = "/v1/chat/completions"
BASE_NAME = "demo"
CONTEXT = 64


def line(number: int, *, url: str = CHAT, **body: Any) -> dict[str, Any]:
    """Build a line of a batch; by default a chat of one turn and at most four tokens."""
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    return {"custom_id": f"line {number}", "method": "POST", "url": url, "body": (chat if url == CHAT else {}) | body}


def jsonl(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


class _Validator(Validator):
    node: "BatchNode"

    async def validate(self, *args: Any, **options: Any) -> Validation:
        validation = await super().validate(*args, **options)
        if self.node.after_validation is not None:
            await self.node.after_validation()
        return validation


@dataclass
class BatchNode:
    """Batches on one server, with the base ``demo`` and a tokenizer of words.

    Attributes:
        refusals: sentences that the audit trail would have got.
        after_validation: called when all lines of a batch were validated, before it is written.
    """

    node: Node
    folder: Path
    settings: BatchSettings = field(default_factory=BatchSettings)
    name: str = "a" * 32
    refusals: list[str] = field(default_factory=list)
    after_validation: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        database, clock = self.node.database, self.node.clock
        store = LocalStore(self.folder / "blobs")
        blobs = BlobService(database, store, self.name, clock=clock)
        files = self.folder / self.name
        self.contents = FileContents(database, store, blobs, files, most_bytes=10**9, clock=clock)
        files.mkdir(exist_ok=True, parents=True)
        self.contents.start()
        configured = Settings(batch=self.settings)
        tokens = PromptTokens(word_tokenizer(), context=CONTEXT)
        self.prompts = ChatPrompts(configured, {}, BaseTemplate(TEMPLATE, {}))
        self.limits = LimitService(tokens.most, MemoryAccounts(database), PriceService(database))
        targets = Targets(self.node.adapters, base_name=BASE_NAME)
        self.service = BatchService(database, targets, self.settings, clock=clock)
        validator = _Validator(
            BodyChecks(configured, tokens),
            Preparation(self.prompts, tokens),
            tokens,
            self.limits,
            BodyReader(),
            self.settings,
        )
        validator.node = self
        self.admission = BatchAdmission(
            database,
            self.contents,
            validator,
            targets,
            self.limits,
            self.settings,
            node=self.name,
            refused=lambda _, message: self.refusals.append(message),
            clock=clock,
            monotonic=clock.monotonic,
        )

    async def caller(self, tenant: str, **restrictions: object) -> Caller:
        """Create the tenant if it does not exist, and a key of it."""
        if tenant not in {row.slug for row in (await self.node.tenants.list()).data}:
            await self.node.tenants.create(tenant, actor="cli")
        scopes = [Scope.INFERENCE, Scope.BATCH]
        new = await self.node.keys.create(
            tenant, name=uuid.uuid4().hex, scopes=scopes, restrictions=restrictions, actor="cli"
        )
        return await self.node.keys.authenticate(new.text)

    async def upload(
        self, caller: Caller, content: bytes, *, purpose: Purpose = Purpose.BATCH, lifetime_s: float = 86400
    ) -> StoredFile:
        path = self.folder / uuid.uuid4().hex
        path.write_bytes(content)
        return await self.contents.put(
            path,
            tenant_id=caller.tenant_id or 0,
            purpose=purpose,
            filename="input.jsonl",
            created_by=caller.key_id,
            expires_at=self.node.clock() + timedelta(seconds=lifetime_s),
        )

    async def create(self, caller: Caller, content: bytes, *, endpoint: str = CHAT, **options: Any) -> Batch:
        """Upload a file and create a batch of it, which waits for its validation."""
        file = await self.upload(caller, content)
        return await self.service.create(caller, NewBatch(file.id, endpoint, **{"completion_window": "24h"} | options))

    async def admitted(self, caller: Caller, content: bytes, **options: Any) -> Batch:
        """Create a batch, and let this node validate all batches that wait."""
        batch = await self.create(caller, content, **options)
        await self.admit()
        return await self.found(batch)

    async def admit(self) -> None:
        await self.admission.advance()
        await self.admission.idle()

    async def found(self, batch: Batch) -> Batch:
        async with self.node.database.read() as connection:
            found = await batches.find_batch(connection, batch.id)
        assert found is not None
        return found

    async def close(self) -> None:
        await self.admission.close()
        await self.prompts.close()


def problems(batch: Batch) -> Sequence[tuple[int | None, str, str]]:
    """Return line, code and sentence of each problem of a batch that failed."""
    assert batch.state is BatchState.FAILED
    return [(problem["line"], problem["code"], problem["message"]) for problem in batch.errors or ()]
