"""Builder of the inference service over a node of the registry tests."""

from pathlib import Path
from typing import cast

from app.domain.usage import UsageEntry, UsageRecord
from app.services.common.in_flight import InFlightLookups
from app.services.limits.accounts import Accounts
from app.services.limits.memory import MemoryAccounts
from app.services.limits.prices import PriceService
from app.services.limits.service import LimitService
from app.services.placement.prefetch.prefetching import Prefetcher
from app.services.prompts.base_template import BaseTemplate
from app.services.prompts.chat import ChatPrompts
from app.services.prompts.tokenizer import BaseTokenizer
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

    async def keep(self, entry: UsageEntry) -> None:
        self.kept.append(entry.record)


#: Chat template of the base of these tests.
TEMPLATE = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


def inference_service(
    node: Node,
    engine: NoEngine,
    settings: Settings | None = None,
    *,
    traffic: Traffic | None = None,
    ledger: MemoryLedger | Ledger | None = None,
    accounts: Accounts | None = None,
    prompts: ChatPrompts | None = None,
    tokenizer: BaseTokenizer | None = None,
    context: int = 64,
) -> InferenceService:
    """Build the service for the base ``demo``.

    Args:
        ledger: where its usage records are kept; default: one that no test reads.
        accounts: where usage is counted; default: in memory.
        prompts: renderer of chats; default: one with :data:`TEMPLATE`.
        tokenizer: the base's tokenizer; None: only the engine counts tokens.
        context: maximum tokens of prompt and answer together.
    """
    settings = settings or Settings()
    in_flight, database = InFlightLookups(), node.database
    tokens = PromptTokens(tokenizer, context=context)
    limits = LimitService(tokens.most, accounts or MemoryAccounts(database), PriceService(database))
    return InferenceService(
        engine,
        node.adapters,
        prompts or ChatPrompts(settings, {}, BaseTemplate(TEMPLATE, {})),
        tokens,
        settings,
        base_name="demo",
        outcomes=Outcomes(engine),
        in_flight=in_flight,
        traffic=traffic or Traffic(),
        prefetcher=Prefetcher(database, engine, in_flight, _NO_FILE, base_digest=BASE_DIGEST),
        limiting=limits,
        meter=Meter(cast("Ledger", ledger or MemoryLedger()), limits),
    )
