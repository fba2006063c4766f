"""Periodic background jobs of a server, and their intervals in seconds."""

from app.services.access.access_log import EVERY_S as ACCESSES_EVERY_S
from app.services.access.audit import EVERY_S as AUDIT_EVERY_S
from app.services.access.idempotency import SWEEP_EVERY_S as IDEMPOTENCY_EVERY_S
from app.services.access.key_watch import EVERY_S as KEYS_EVERY_S
from app.services.batches.admission import EVERY_S as BATCHES_EVERY_S
from app.services.batches.sweeper import EVERY_S as ENDED_BATCHES_EVERY_S
from app.services.batches.sweeper import BatchSweeper
from app.services.deletion.worker import EVERY_S as DELETIONS_EVERY_S
from app.services.files.local_copies import EVERY_S as COPIES_EVERY_S
from app.services.files.sweeper import EVERY_S as FILES_EVERY_S
from app.services.limits.prices import EVERY_S as PRICES_EVERY_S
from app.services.limits.service import EVERY_S as LIMITS_EVERY_S
from app.services.operations.events import EVERY_S as EVENTS_EVERY_S
from app.services.operations.lost_bytes import EVERY_S as LOST_BYTES_EVERY_S
from app.services.operations.nodes import HEARTBEAT_S
from app.services.operations.readiness import EVERY_S as READINESS_EVERY_S
from app.services.operations.retention import EVERY_S as RETENTION_EVERY_S
from app.services.operations.retention import RetentionService
from app.services.placement.placement import EVERY_S as PLACEMENT_EVERY_S
from app.services.placement.prefetch.prefetching import EVERY_S as PREFETCHING_EVERY_S
from app.services.publishing.uploads.sweeper import EVERY_S as UPLOADS_EVERY_S
from app.services.publishing.uploads.sweeper import UploadSweeper
from app.services.rollout.runner import CanaryRunner
from app.services.usage.ledger import EVERY_S as USAGE_EVERY_S
from app.support.periodic import Periodic
from app.wiring.engine_node import EngineNode
from app.wiring.gateway import Gateway

_SMOKE_TESTS_EVERY_S = 60
_CANARIES_EVERY_S = 0.5


def gateway_jobs(gateway: Gateway) -> tuple[Periodic, ...]:
    """Build the periodic jobs of a gateway; none of them is started."""
    settings = gateway.settings
    canaries = CanaryRunner(gateway.database, gateway.outcomes, gateway.node_id)
    sweeper = UploadSweeper(gateway.database, gateway.store, settings.limits)
    retention = RetentionService(
        gateway.database, gateway.audit, usage_days=settings.usage_days, audit_days=settings.audit_days
    )
    ended_batches = BatchSweeper(gateway.database, kept_days=settings.batch.batch_days)
    return (
        Periodic("unfinished trials", _SMOKE_TESTS_EVERY_S, gateway.smoke_tests.resume),
        Periodic("keys in use", KEYS_EVERY_S, gateway.key_watch.check),
        Periodic("canaries", _CANARIES_EVERY_S, canaries.tick),
        Periodic("idempotency keys", IDEMPOTENCY_EVERY_S, gateway.idempotency.sweep),
        Periodic("events", EVENTS_EVERY_S, gateway.events.poll),
        Periodic("abandoned uploads", UPLOADS_EVERY_S, sweeper.sweep),
        Periodic("expired files", FILES_EVERY_S, gateway.file_sweeper.sweep),
        Periodic("ended batches", ENDED_BATCHES_EVERY_S, ended_batches.sweep),
        Periodic("copies of files", COPIES_EVERY_S, gateway.contents.copies.remove_idle),
        Periodic("accesses", ACCESSES_EVERY_S, gateway.audit.access_log.write),
        Periodic("audit seals", AUDIT_EVERY_S, gateway.audit.seal),
        Periodic("retention", RETENTION_EVERY_S, retention.sweep),
        Periodic("limits", LIMITS_EVERY_S, gateway.limits.accounts.maintain),
        Periodic("prices", PRICES_EVERY_S, gateway.limits.prices.refresh),
        Periodic("usage", USAGE_EVERY_S, gateway.ledger.ship),
        Periodic("batches to validate", BATCHES_EVERY_S, gateway.batch_admission.advance),
        Periodic("readiness", READINESS_EVERY_S, gateway.readiness.problems),
    )


def node_jobs(node: EngineNode) -> tuple[Periodic, ...]:
    """Build the periodic jobs of an engine node; none of them is started."""
    return (
        Periodic("pins", PLACEMENT_EVERY_S, node.placement.follow),
        Periodic("prefetching", PREFETCHING_EVERY_S, node.prefetching.advance),
        Periodic("heartbeat", HEARTBEAT_S, node.nodes.beat),
        Periodic("deletions", DELETIONS_EVERY_S, node.deleting.advance),
        Periodic("lost bytes", LOST_BYTES_EVERY_S, node.lost_bytes.maintain),
    )
