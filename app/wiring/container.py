"""Container of everything that lives as long as the process. All of it is safe for concurrent requests.

Objects that live as long as one request are created where they are used:

- a database connection inside one service call,
- a spool folder around one upload,
- an adapter's lease inside the engine.
"""

import asyncio
from functools import cached_property

from adapters.cache import DiskCache
from app.database.session import Database
from app.database.urls import database_url
from app.engine.port import Engine
from app.engine.vllm.platform import this_machine
from app.engine.vllm_engine import VllmEngine
from app.importing.bucket import Buckets
from app.importing.hub import Hub
from app.planning.machine import resolve_slots
from app.served_base import open_base
from app.services.access.audit import AuditService
from app.services.access.caller_cache import CallerCache
from app.services.access.idempotency import IdempotencyService
from app.services.access.key_format import KeyHasher
from app.services.access.key_watch import KeyWatch
from app.services.access.keys import KeyService
from app.services.access.pepper_check import open_peppers
from app.services.access.peppers import Peppers
from app.services.access.tenants import TenantService
from app.services.bodies.reading import BodyReader
from app.services.catalog.adapters import AdapterService
from app.services.catalog.descriptions import DescriptionService
from app.services.catalog.shares import SharingService
from app.services.common.in_flight import InFlightLookups
from app.services.deletion.deletions import DeletionService
from app.services.deletion.retirement import RetirementService
from app.services.deletion.worker import DeletionWorker
from app.services.limits.service import LimitService
from app.services.operations.engine_view import EngineViewService
from app.services.operations.events import EventFeed
from app.services.operations.lost_bytes import LostBytes
from app.services.operations.nodes import NodeService
from app.services.operations.readiness import Readiness
from app.services.operations.store_owner import StoreOwner
from app.services.placement.pins import PinService
from app.services.placement.placement import PlacementService
from app.services.placement.prefetch.prefetching import Prefetcher
from app.services.prompts.chat import ChatPrompts, special_tokens
from app.services.publishing.blobs import BlobService
from app.services.publishing.export import ExportService
from app.services.publishing.imports import ImportService
from app.services.publishing.merging import MergingService
from app.services.publishing.publishing import PublishingService
from app.services.publishing.smoke_tests import SmokeTestService
from app.services.publishing.uploads.finishing import UploadFinisher
from app.services.publishing.uploads.part_receiver import PartReceiver
from app.services.publishing.uploads.sessions import UploadService
from app.services.rollout.aliases import AliasService
from app.services.rollout.canaries import CanaryService
from app.services.rollout.outcomes import Outcomes
from app.services.serving.adapter_traffic import Traffic
from app.services.serving.inference import InferenceService
from app.services.serving.models import ModelService
from app.services.usage.journal import Journal
from app.services.usage.ledger import Ledger
from app.services.usage.meter import Meter
from app.services.usage.usage import UsageService
from app.settings import Settings
from app.support.home import secure_home
from app.support.spool import Spool
from app.wiring.engine_metrics import Metrics
from app.wiring.limit_accounts import limit_service
from app.wiring.node import node_id, node_name
from app.wiring.store import configured_store


class Container:
    """The wired parts of one server.

    ``app.main`` starts and stops the parts that need it. ``app.wiring.jobs`` builds the periodic jobs. The constructor
    blocks: it reads and creates files in HOME, but connects to nothing and starts nothing. Each service is created on
    first access.

    Args:
        engine: another implementation of the port; default: vLLM in this process.

    Raises:
        app.served_base.BaseNotFound
        adapters.errors.AdapterError: the base, the store's URL or HOME's disk is not usable.
        ValueError: the registry does not support the database's URL.
    """

    def __init__(self, settings: Settings, *, engine: Engine | None = None) -> None:
        self.settings = settings
        secure_home(settings.home)
        self.base = base = open_base(settings)
        self.database = Database(database_url(settings))
        self.store = configured_store(settings)
        self.cache = DiskCache(
            settings.home / "cache", self.store, settings.cache_bytes, fetch_s=settings.fetch_seconds
        )
        self._slots = resolve_slots(settings, base.path, this_machine)
        self.engine = engine or VllmEngine(
            settings, base=base.path, base_name=base.name, cache=self.cache, slots=self._slots
        )
        # Only holders of a platform key may learn which adapters get requests.
        self._traffic = Traffic() if settings.metrics_key_required else None
        self.metrics = Metrics(self.engine, self.cache, self._traffic)
        self.engine_view = EngineViewService(self.database, self.engine, node=node_name())
        limits = settings.limits
        self.spool = Spool(settings.home / "spool", places=limits.uploads, patience_s=limits.upload_idle_seconds)
        self.bodies = BodyReader()
        self.prompts = ChatPrompts(settings, special_tokens(base.path))
        self._peppers: Peppers
        self.node = node_id(settings.home)
        self._callers, self._readers = CallerCache(), InFlightLookups()

    async def open_peppers(self) -> None:
        """Load the peppers and verify that they belong to the registry. Call this before any service uses a secret.

        Raises:
            app.services.access.peppers.MissingPepper
            app.services.access.peppers.WrongPepper
            app.services.access.peppers.InvalidPepper
            RegistryUnavailable
        """
        self._peppers = await open_peppers(self.database, self.settings)

    @cached_property
    def readiness(self) -> Readiness:
        checks = {
            "engine": self.engine.check,
            "database": self.database.check_serving,
            "store": self._check_store,
        }
        return Readiness(checks, limitations={"database": lambda: self.database.troubles.changes})

    async def _check_store(self) -> None:
        await asyncio.to_thread(self.store.check)
        await self.store_owner.ensure()

    @cached_property
    def store_owner(self) -> StoreOwner:
        return StoreOwner(self.database, self.store)

    # Access: tenants, keys, audit.

    @cached_property
    def keys(self) -> KeyService:
        return KeyService(self.database, KeyHasher(self._peppers), self._callers, base_name=self.base.name)

    @cached_property
    def key_watch(self) -> KeyWatch:
        return KeyWatch(self.database)

    @cached_property
    def tenants(self) -> TenantService:
        return TenantService(self.database, self._callers)

    @cached_property
    def audit(self) -> AuditService:
        return AuditService(self.database, self._peppers, self.settings.home / "audit-seal")

    @cached_property
    def idempotency(self) -> IdempotencyService:
        return IdempotencyService(self.database, self._peppers)

    # Catalog: adapters, descriptions, shares, aliases, canaries.

    @cached_property
    def adapters(self) -> AdapterService:
        return AdapterService(
            self.database,
            base_name=self.base.name,
            base_digest=self.base.digest,
            lora_head=self.settings.engine.lora_head,
        )

    @cached_property
    def descriptions(self) -> DescriptionService:
        return DescriptionService(self.database, self.prompts, self.settings.limits)

    @cached_property
    def sharing(self) -> SharingService:
        return SharingService(self.database)

    @cached_property
    def aliases(self) -> AliasService:
        return AliasService(self.database, base_digest=self.base.digest)

    @cached_property
    def canaries(self) -> CanaryService:
        return CanaryService(self.database, base_digest=self.base.digest)

    @cached_property
    def _blobs(self) -> BlobService:
        return BlobService(self.database, self.store, self.node)

    # Publishing.

    @cached_property
    def trials(self) -> SmokeTestService:
        return SmokeTestService(self.database, self.engine, self._readers, self.deleting.wake)

    @cached_property
    def publishing(self) -> PublishingService:
        return PublishingService(
            self.database, self.store, self.base, self.settings, self.trials, self.prompts, self._blobs
        )

    @cached_property
    def uploads(self) -> UploadService:
        return UploadService(self.database, self.store, self.settings.limits)

    @cached_property
    def parts(self) -> PartReceiver:
        return PartReceiver(self.uploads, self.settings.home / "parts", self.settings.limits)

    @cached_property
    def finisher(self) -> UploadFinisher:
        return UploadFinisher(
            self.database, self.store, self.spool, self.publishing, self.adapters, self.settings.limits
        )

    @cached_property
    def imports(self) -> ImportService:
        buckets = Buckets(endpoint_url=self.settings.s3_endpoint_url, region=self.settings.s3_region)
        return ImportService(self.publishing, self.spool, Hub(self.settings.imports), buckets, self.settings)

    @cached_property
    def merging(self) -> MergingService:
        return MergingService(
            self.tenants,
            self.adapters,
            self.publishing,
            self.cache,
            self.spool,
            self._readers,
            self.base,
            self.settings,
        )

    @cached_property
    def export(self) -> ExportService:
        return ExportService(self.adapters, self.cache, self._readers)

    @cached_property
    def lost_bytes(self) -> LostBytes:
        return LostBytes(self.database, self.store, self.cache)

    # Deletion and retirement.

    @cached_property
    def deleting(self) -> DeletionWorker:
        forget = self.prefetching.forget
        return DeletionWorker(
            self.database, self.engine, self.cache, self._blobs, self._readers, self.node, forget=forget
        )

    @cached_property
    def deletions(self) -> DeletionService:
        return DeletionService(self.database, self.deleting.wake)

    @cached_property
    def retirement(self) -> RetirementService:
        return RetirementService(self.database, self.engine, self._readers)

    # Serving.

    @cached_property
    def inference(self) -> InferenceService:
        return InferenceService(
            self.engine,
            self.adapters,
            self.prompts,
            self.settings,
            base_name=self.base.name,
            outcomes=self.outcomes,
            readers=self._readers,
            traffic=self._traffic,
            prefetcher=self.prefetching,
            limiting=self.limits,
            meter=self.meter,
        )

    @cached_property
    def models(self) -> ModelService:
        return ModelService(self.adapters, self.sharing, base_name=self.base.name)

    # Usage, limits and placement.

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.database, Journal(self.settings.home / "usage"))

    @cached_property
    def limits(self) -> LimitService:
        return limit_service(self.settings, self.database, self.engine, self.node, self.metrics)

    @cached_property
    def meter(self) -> Meter:
        return Meter(self.engine, self.ledger, self.limits, ended=self.key_watch.ended)

    @cached_property
    def usage(self) -> UsageService:
        return UsageService(self.database, currency=self.settings.currency)

    @cached_property
    def outcomes(self) -> Outcomes:
        return Outcomes(self.engine)

    @cached_property
    def pins(self) -> PinService:
        return PinService(
            self.database,
            self.engine,
            lambda: self.placement.preloads,
            base_digest=self.base.digest,
            lora_head=self.settings.engine.lora_head,
        )

    @cached_property
    def placement(self) -> PlacementService:
        return PlacementService(
            self.database,
            self.engine,
            self.adapters,
            self._readers,
            preload=self.settings.preload,
            base_digest=self.base.digest,
            lora_head=self.settings.engine.lora_head,
        )

    @cached_property
    def prefetching(self) -> Prefetcher:
        path = self.settings.home / "working-set.json"
        return Prefetcher(
            self.database,
            self.engine,
            self._readers,
            path,
            base_digest=self.base.digest,
            lora_head=self.settings.engine.lora_head,
        )

    # Operations across servers.

    @cached_property
    def nodes(self) -> NodeService:
        return NodeService(self.database, self.node, node_name())

    @cached_property
    def events(self) -> EventFeed:
        return EventFeed(self.database, self.engine, self.node)
