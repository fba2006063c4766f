"""Server facts: release, base, device, caps and optional features, the same for every caller."""

from collections.abc import Iterator
from dataclasses import dataclass

from adapters.stores.base import BlobStore
from adapters.weights import MAX_HEADER_BYTES
from app.database import adapters
from app.database.session import Database
from app.domain.uploads import MAX_PART_BYTES
from app.engine.port import Status
from app.served_base import ServedBase
from app.settings import LimitSettings, Settings
from app.support.release import RELEASE


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about a server. None of them depends on a tenant.

    Attributes:
        device: name of the engine's device, such as ``cpu``; empty if it is unknown.
        slots: slots of the engine.
        kv_tokens: tokens that fit in the KV cache; 0 until the engine has started.
        max_lora_rank: largest rank of an adapter.
        limits: caps of uploads, among others.
        header_bytes: maximum size of the header of a safetensors file.
        part_bytes: maximum size of a part of an upload.
        features: names of the optional features that are on.
        currency: currency of prices and budgets.
    """

    release: str
    base: ServedBase
    device: str
    slots: int
    kv_tokens: int
    max_lora_rank: int
    limits: LimitSettings
    header_bytes: int
    part_bytes: int
    features: tuple[str, ...]
    currency: str


class ServerFactsService:
    """Collects the facts of this server."""

    def __init__(
        self,
        settings: Settings,
        base: ServedBase,
        database: Database,
        store: BlobStore,
        engine: Status,
        *,
        chats: bool,
    ) -> None:
        self._settings, self._base, self._database = settings, base, database
        self._store, self._engine = store, engine
        self._chats = chats

    def facts(self) -> ServerFacts:
        """Return the facts of this server as they are now."""
        settings, status = self._settings, self._engine.status()
        return ServerFacts(
            release=RELEASE,
            base=self._base,
            device=status.device,
            slots=status.slots,
            kv_tokens=status.kv_tokens,
            max_lora_rank=settings.engine.max_lora_rank,
            limits=settings.limits,
            header_bytes=MAX_HEADER_BYTES,
            part_bytes=MAX_PART_BYTES,
            features=tuple(self._features()),
            currency=settings.currency,
        )

    async def published(self) -> tuple[int, int]:
        """Return the number of adapters of all tenants, and of tenants that have one. For the platform only.

        Raises:
            RegistryUnavailable
        """
        async with self._database.read() as connection:
            return await adapters.count_adapters(connection)

    def _features(self) -> Iterator[str]:
        settings = self._settings
        for name, is_on in {
            "chat": self._chats,
            "direct_uploads": self._store.staging.direct,
            "import_hf": settings.imports.hf,
            "import_s3": bool(settings.imports.s3_prefixes),
            "lora_head": settings.engine.lora_head,
            "validate": True,
        }.items():
            if is_on:
                yield name
