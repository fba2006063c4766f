"""Builder of the inference service over a node of the registry tests."""

from pathlib import Path
from typing import cast

from app.domain.usage import UsageRecord
from app.services.common.in_flight import InFlightLookups
from app.services.limits.memory import MemoryAccounts
from app.services.limits.prices import PriceService
from app.services.limits.service import LimitService
from app.services.placement.prefetch.prefetching import Prefetcher
from app.services.prompts.base_template import BaseTemplate
from app.services.prompts.chat import ChatPrompts
from app.services.prompts.tokens import PromptTokens
from app.services.rollout.outcomes import Outcomes
from app.services.serving.adapter_traffic import Traffic
from app.services.serving.inference import InferenceService
from app.services.usage.ledger import Ledger
from app.services.usage.meter import Meter
from app.settings import Settings
from tests.support.registry import BASE_DIGEST, Node
from tests.support.serving import NoEngine

#: Never written: no test here saves the working set.
_NO_FILE = Path("/nonexistent/working-set.json")


class MemoryLedger:
    """Ledger that keeps its records in a list."""

    def __init__(self) -> None:
        self.kept: list[UsageRecord] = []

    async def keep(self, record: UsageRecord) -> None:
        self.kept.append(record)


def inference_service(
    node: Node, engine: NoEngine, settings: Settings | None = None, *, traffic: Traffic | None = None
) -> InferenceService:
    """Build the service for the base ``demo`` with 64 tokens of context. Its records are kept in memory only."""
    settings = settings or Settings()
    in_flight, database = InFlightLookups(), node.database
    tokens = PromptTokens(None, context=64)
    limits = LimitService(tokens.most, MemoryAccounts(database), PriceService(database))
    return InferenceService(
        engine,
        node.adapters,
        ChatPrompts(settings, {}, BaseTemplate("{% for m in messages %}<{{ m.content }}>{% endfor %}", {})),
        tokens,
        settings,
        base_name="demo",
        outcomes=Outcomes(engine),
        in_flight=in_flight,
        traffic=traffic or Traffic(),
        prefetcher=Prefetcher(database, engine, in_flight, _NO_FILE, base_digest=BASE_DIGEST),
        limiting=limits,
        meter=Meter(cast("Ledger", MemoryLedger()), limits),
    )
