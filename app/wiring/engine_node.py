"""Engine node: the half of a server that runs the engine and holds adapters on this machine."""

from adapters.cache import DiskCache
from app.domain.node_snapshots import NodeRole
from app.engine.port import Engine
from app.services.common.in_flight import InFlightLookups
from app.services.deletion.worker import DeletionWorker
from app.services.operations.lost_bytes import LostBytes
from app.services.operations.node_snapshot import NodeReporter
from app.services.operations.nodes import NodeService
from app.services.placement.fleet_pins import FleetPins
from app.services.placement.placement import PlacementService
from app.services.placement.prefetch.prefetching import Prefetcher
from app.wiring.node import node_name
from app.wiring.resources import Resources


class EngineNode:
    """Engine, disk cache, placement, and this node's part in deletions.

    The constructor blocks, but starts nothing. All parts are safe for concurrent requests.

    Args:
        engine: another implementation of the port; default: vLLM in this process.
        in_flight: record of look-ups; default: one of this process's gateway.
        role: role of this node.

    Attributes:
        in_flight: look-ups that may lead to this node's engine or disk. A deletion here waits for them, so a gateway
            records its own in it.
    """

    def __init__(
        self,
        resources: Resources,
        *,
        engine: Engine | None = None,
        in_flight: InFlightLookups | None = None,
        role: NodeRole = NodeRole.SERVER,
    ) -> None:
        settings, base = resources.settings, resources.base
        self.resources = resources
        database, node_id = resources.database, resources.node_id
        self.cache = cache = DiskCache(
            settings.home / "cache", resources.store, settings.cache_bytes, fetch_s=settings.fetch_seconds
        )
        self.engine = engine = engine or _vllm_engine(resources, cache)
        self.in_flight = in_flight = in_flight or InFlightLookups()
        self.placement = PlacementService(
            database,
            engine,
            resources.adapters,
            in_flight,
            preload=settings.preload,
            base_digest=base.digest,
            lora_head=settings.engine.lora_head,
            fleet_pins=FleetPins(engine, node_id, base.digest, copies=settings.ray.pin_copies)
            if role is NodeRole.REPLICA
            else None,
        )
        self.prefetching = Prefetcher(
            database,
            engine,
            in_flight,
            settings.home / "working-set.json",
            base_digest=base.digest,
            lora_head=settings.engine.lora_head,
        )
        self.deleting = DeletionWorker(
            database,
            engine,
            cache,
            resources.blobs,
            in_flight,
            node_id,
            drop_file=resources.contents.drop,
            forget=self.prefetching.forget,
            finishes=role is not NodeRole.REPLICA,
        )
        self.lost_bytes = LostBytes(database, resources.store, cache)
        reporter = NodeReporter(engine, role, base.digest)
        self.nodes = NodeService(database, node_id, node_name(), report=reporter.report)


def _vllm_engine(resources: Resources, cache: DiskCache) -> Engine:
    # A server whose engines are elsewhere needs neither vLLM nor torch.
    from app.engine.vllm.platform import this_machine
    from app.engine.vllm_engine import VllmEngine
    from app.planning.machine import resolve_slots

    settings, base = resources.settings, resources.base
    return VllmEngine(
        settings,
        base=base.path,
        base_name=base.name,
        context=base.context,
        cache=cache,
        slots=resolve_slots(settings, base.path, this_machine),
    )
