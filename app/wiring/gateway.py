"""Gateway: the half of a server that answers HTTP.

It needs an engine only through the port, so importing this module imports neither torch nor vLLM.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property

from adapters.cache import DiskCache
from app.domain.pins import Preload
from app.engine.port import Engine
from app.importing.bucket import Buckets
from app.importing.hub import Hub
from app.services.access.acting import ActingService
from app.services.access.audit import AuditService
from app.services.access.audit_log import AuditLogService
from app.services.access.caller_cache import CallerCache
from app.services.access.idempotency import IdempotencyService
from app.services.access.key_format import KeyHasher
from app.services.access.key_watch import KeyWatch
from app.services.access.keys import KeyService
from app.services.access.own_keys import OwnKeyService
from app.services.access.pepper_check import open_peppers
from app.services.access.peppers import Peppers
from app.services.access.sessions import SessionService
from app.services.access.tenants import TenantService
from app.services.batches.admission import BatchAdmission
from app.services.batches.finishing import Finisher
from app.services.batches.line_runner import LineRunner
from app.services.batches.runner import BatchRunner
from app.services.batches.service import BatchService
from app.services.batches.validation import Validator
from app.services.bodies.reading import BodyReader
from app.services.catalog.descriptions import DescriptionService
from app.services.catalog.shares import SharingService
from app.services.common.in_flight import InFlightLookups
from app.services.deletion.deletions import DeletionService
from app.services.deletion.retirement import RetirementService
from app.services.files.files import FileService
from app.services.files.sweeper import FileSweeper
from app.services.files.uploads import FileUploadService
from app.services.limits.service import LimitService
from app.services.operations.engine_view import EngineViewService
from app.services.operations.events import EventFeed
from app.services.operations.node_view import NodeViewService
from app.services.operations.nodes import NodeService
from app.services.operations.readiness import Readiness
from app.services.operations.server_facts import ServerFactsService
from app.services.placement.fleet_pins import FleetRoom
from app.services.placement.pins import PinService
from app.services.placement.prefetch.prefetching import Prefetcher
from app.services.prompts.base_template import BaseTemplate
from app.services.prompts.chat import ChatPrompts
from app.services.prompts.tokenizer import load_tokenizer, special_tokens
from app.services.prompts.tokens import PromptTokens
from app.services.publishing.export import ExportService
from app.services.publishing.imports import ImportService
from app.services.publishing.merging import MergingService
from app.services.publishing.preflight import PreflightService
from app.services.publishing.publishing import PublishingService
from app.services.publishing.refusals import RefusalService
from app.services.publishing.smoke_tests import SmokeTestService
from app.services.publishing.uploads.finishing import UploadFinisher
from app.services.publishing.uploads.part_receiver import PartReceiver
from app.services.publishing.uploads.sessions import UploadService
from app.services.rollout.aliases import AliasService
from app.services.rollout.canaries import CanaryService
from app.services.rollout.outcomes import Outcomes
from app.services.serving.adapter_traffic import Traffic
from app.services.serving.checked_bodies import BodyChecks
from app.services.serving.inference import InferenceService
from app.services.serving.models import ModelService
from app.services.serving.preparation import Preparation
from app.services.serving.targets import Targets
from app.services.serving.tokenization import TokenizationService
from app.services.usage.journal import Journal
from app.services.usage.ledger import Ledger
from app.services.usage.meter import Meter
from app.services.usage.request_log import RequestLogService
from app.services.usage.turns import UsageTurns
from app.services.usage.usage import UsageService
from app.support.spool import Spool
from app.wiring.engine_metrics import Metrics
from app.wiring.limit_accounts import limit_service
from app.wiring.node import node_name
from app.wiring.residency_metrics import ResidencyMetrics
from app.wiring.resources import Resources

#: Seconds for which a server holds a batch whose files it writes, after each of its steps.
_FINISHING_S = 60.0


class Gateway:
    """Services behind the routes: keys, registry, publishing, limits, usage, inference, administration.

    The constructor starts nothing. Each service is created on first access. All of them are safe for concurrent
    requests.

    Args:
        cache: disk cache from which exports and merges read versions.
        in_flight: record of look-ups; the deletions of the engine's node wait for them.
        nodes: view of the servers on this registry.
        prefetcher: told of the version of each request.
        preloads: returns the preload list as the engine's node loaded it.
        wake_deletions: called after a deletion was requested, so that it starts at once.
    """

    def __init__(
        self,
        resources: Resources,
        *,
        engine: Engine,
        cache: DiskCache,
        in_flight: InFlightLookups,
        nodes: NodeService,
        prefetcher: Prefetcher,
        preloads: Callable[[], Sequence[Preload]],
        wake_deletions: Callable[[], None],
    ) -> None:
        self.settings = settings = resources.settings
        self.base, self.node_id, self.adapters = resources.base, resources.node_id, resources.adapters
        self.database, self.store = resources.database, resources.store
        self._store_owner, self._blobs = resources.store_owner, resources.blobs
        self.contents = resources.contents
        self._engine, self._cache, self._in_flight, self.nodes = engine, cache, in_flight, nodes
        self._prefetcher, self._preloads, self._wake_deletions = prefetcher, preloads, wake_deletions
        self._traffic = Traffic()
        # Only holders of a platform key may learn which adapters get requests.
        shown = self._traffic if settings.metrics_key_required else None
        self.metrics = Metrics(engine, cache, shown)
        if settings.metrics_residency:
            self.metrics.add(ResidencyMetrics(engine).now)
        self.engine_view = EngineViewService(self.database, engine, node=node_name())
        limits = settings.limits
        self.spool = Spool(settings.home / "spool", places=limits.uploads, patience_s=limits.upload_idle_seconds)
        # Separate, so that slow uploads of files do not keep versions waiting.
        self.file_spool = Spool(
            settings.home / "file-spool", places=limits.parts, patience_s=limits.upload_idle_seconds
        )
        self.bodies = BodyReader()
        names = special_tokens(self.base.path).texts
        self.prompts = ChatPrompts(settings, names, BaseTemplate.read(self.base.path, names))
        self._tokens = PromptTokens(load_tokenizer(self.base.path), context=self.base.context)
        self._peppers: Peppers
        self._callers = CallerCache()

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
            "engine": self._engine.check,
            "database": self.database.check_serving,
            "store": self._check_store,
        }
        return Readiness(checks, limitations={"database": lambda: self.database.troubles.changes})

    async def _check_store(self) -> None:
        await asyncio.to_thread(self.store.check)
        await self._store_owner.ensure()

    # Access: tenants, keys, audit.

    @cached_property
    def keys(self) -> KeyService:
        return KeyService(self.database, KeyHasher(self._peppers), self._callers, base_name=self.base.name)

    @cached_property
    def own_keys(self) -> OwnKeyService:
        return OwnKeyService(self.database, self.keys)

    @cached_property
    def sessions(self) -> SessionService:
        return SessionService(self.database, self.keys.hasher, self._callers, self.keys.uses)

    @cached_property
    def key_watch(self) -> KeyWatch:
        return KeyWatch(self.database)

    @cached_property
    def tenants(self) -> TenantService:
        return TenantService(self.database, self._callers)

    @cached_property
    def acting(self) -> ActingService:
        return ActingService(self.database)

    @cached_property
    def audit(self) -> AuditService:
        return AuditService(self.database, self._peppers, self.settings.home / "audit-seal")

    @cached_property
    def audit_log(self) -> AuditLogService:
        return AuditLogService(self.database)

    @cached_property
    def idempotency(self) -> IdempotencyService:
        return IdempotencyService(self.database, self._peppers)

    # Catalog: adapters, descriptions, shares, aliases, canaries.

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

    # Publishing.

    @cached_property
    def smoke_tests(self) -> SmokeTestService:
        return SmokeTestService(self.database, self._engine, self._in_flight, self._wake_deletions)

    @cached_property
    def publishing(self) -> PublishingService:
        return PublishingService(
            self.database,
            self.store,
            self.base,
            self.settings,
            self.smoke_tests,
            self.prompts,
            self._blobs,
            self.refusals,
        )

    @cached_property
    def refusals(self) -> RefusalService:
        return RefusalService(self.database)

    @cached_property
    def preflight(self) -> PreflightService:
        return PreflightService(self.database, self.base, self.publishing.validator, self.limits, self.settings.limits)

    @cached_property
    def uploads(self) -> UploadService:
        return UploadService(self.database, self.store, self.settings.limits)

    @cached_property
    def parts(self) -> PartReceiver:
        return PartReceiver(self.uploads, self.settings.home / "parts", self.settings.limits)

    @cached_property
    def finisher(self) -> UploadFinisher:
        return UploadFinisher(
            self.database,
            self.store,
            self.spool,
            self.publishing,
            self.adapters,
            self.refusals,
            self.settings.limits,
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
            self._cache,
            self.spool,
            self._in_flight,
            self.base,
            self.settings,
        )

    @cached_property
    def export(self) -> ExportService:
        return ExportService(self.adapters, self._cache, self._in_flight)

    # Deletion and retirement.

    @cached_property
    def deletions(self) -> DeletionService:
        return DeletionService(self.database, self._wake_deletions)

    @cached_property
    def retirement(self) -> RetirementService:
        return RetirementService(self.database, self._engine, self._in_flight)

    # Files of batches.

    @cached_property
    def files(self) -> FileService:
        return FileService(self.database, self.contents, self.settings.batch, self._wake_deletions)

    @cached_property
    def file_uploads(self) -> FileUploadService:
        return FileUploadService(
            self.database,
            self.contents,
            self.file_spool,
            self.settings.batch,
            self.settings.limits,
            self._wake_deletions,
        )

    @cached_property
    def file_sweeper(self) -> FileSweeper:
        return FileSweeper(self.database)

    # Serving.

    @cached_property
    def inference(self) -> InferenceService:
        return InferenceService(
            self._engine,
            self.adapters,
            self.prompts,
            self._tokens,
            self.settings,
            base_name=self.base.name,
            outcomes=self.outcomes,
            in_flight=self._in_flight,
            traffic=self._traffic,
            prefetcher=self._prefetcher,
            limiting=self.limits,
            meter=self.meter,
        )

    @cached_property
    def batch_runner(self) -> BatchRunner:
        settings = self.settings.batch
        lines = LineRunner(self.inference, BodyChecks(self.settings, self._tokens), weight=settings.weight)
        finisher = Finisher(
            self.database, self.store, self.contents, node=self.node_id, lease_s=max(_FINISHING_S, settings.node_lost_s)
        )
        return BatchRunner(
            self.database,
            self._engine,
            lines,
            finisher,
            self.contents,
            self.ledger,
            node=self.node_id,
            lost_s=settings.node_lost_s,
            window_share=settings.window_share,
        )

    @cached_property
    def batches(self) -> BatchService:
        targets = Targets(self.adapters, base_name=self.base.name)
        return BatchService(self.database, targets, self.settings.batch)

    @cached_property
    def batch_admission(self) -> BatchAdmission:
        validator = Validator(
            BodyChecks(self.settings, self._tokens),
            Preparation(self.prompts, self._tokens),
            self._tokens,
            self.limits,
            self.bodies,
            self.settings.batch,
        )
        return BatchAdmission(
            self.database,
            self.contents,
            validator,
            Targets(self.adapters, base_name=self.base.name),
            self.limits,
            self.settings.batch,
            node=self.node_id,
            refused=self.audit.access_log.refused,
        )

    @cached_property
    def tokenization(self) -> TokenizationService:
        return TokenizationService(
            self.adapters,
            self.prompts,
            self._tokens,
            self.limits,
            self.settings.limits,
            base_name=self.base.name,
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
        return limit_service(self.settings, self.database, self._tokens, self.node_id, self.metrics)

    @cached_property
    def meter(self) -> Meter:
        return Meter(self.ledger, self.limits, ended=self.key_watch.ended)

    @cached_property
    def usage_turns(self) -> UsageTurns:
        return UsageTurns()

    @cached_property
    def usage(self) -> UsageService:
        return UsageService(self.database, self.usage_turns, currency=self.settings.currency)

    @cached_property
    def request_log(self) -> RequestLogService:
        return RequestLogService(self.database, self.usage_turns, base_name=self.base.name)

    @cached_property
    def outcomes(self) -> Outcomes:
        return Outcomes(self._engine)

    @cached_property
    def pins(self) -> PinService:
        ray = self.settings.ray
        return PinService(
            self.database,
            self._engine,
            self._preloads,
            base_digest=self.base.digest,
            lora_head=self.settings.engine.lora_head,
            fleet=FleetRoom(self.base.digest, copies=ray.pin_copies) if ray.address else None,
        )

    # Operations.

    @cached_property
    def server_facts(self) -> ServerFactsService:
        return ServerFactsService(
            self.settings, self.base, self.database, self.store, self._engine, chats=self.prompts.serves_base
        )

    @cached_property
    def node_view(self) -> NodeViewService:
        return NodeViewService(self.database, self.nodes)

    @cached_property
    def events(self) -> EventFeed:
        return EventFeed(self.database, self._engine, self.node_id)
