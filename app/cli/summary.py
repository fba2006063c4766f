"""Start-up summary: six lines about a server that is ready, or one log line with the same fields in JSON."""

import logging
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal, Self

from app.domain.errors import RegistryUnavailable
from app.wiring.gateway import Gateway

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Summary:
    """Facts about a server that is ready.

    Attributes:
        context: maximum tokens of a sequence, prompt and answer together.
        kv_tokens: tokens that fit in the engine's KV cache.
        adapters, tenants: number of adapters, and of tenants that have one; None if the registry does not answer.
        addresses: URLs of the server.
    """

    version: str
    base: str
    context: int
    device: str
    kv_tokens: int
    slots: int
    max_lora_rank: int
    adapters: int | None
    tenants: int | None
    addresses: tuple[str, ...]

    @classmethod
    async def of(cls, gateway: Gateway, addresses: tuple[str, ...]) -> Self:
        """Collect the facts."""
        facts = gateway.server_facts.facts()
        adapters: int | None = None
        tenants: int | None = None
        with suppress(RegistryUnavailable):
            adapters, tenants = await gateway.server_facts.published()
        return cls(
            version=facts.release,
            base=facts.base.name,
            context=facts.base.context,
            device=facts.device,
            kv_tokens=facts.kv_tokens,
            slots=facts.slots,
            max_lora_rank=facts.max_lora_rank,
            adapters=adapters,
            tenants=tenants,
            addresses=addresses,
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """The six lines for people."""
        tenants = "1 tenant" if self.tenants == 1 else f"{self.tenants or 0:,} tenants"
        published = f"{self.adapters:,} of {tenants}" if self.adapters else "none yet"
        if self.adapters is None:
            published = "unknown: the registry does not answer"
        return (
            f"Tenora {self.version} is ready.",
            f"  base       {self.base}, {self.context:,} tokens of context",
            f"  device     {self.device or 'unknown'}, {self.kv_tokens:,} tokens of KV cache",
            f"  slots      {self.slots} in the engine, for adapters of rank up to {self.max_lora_rank}",
            f"  adapters   {published}",
            f"  addresses  {', '.join(self.addresses)}; its API is at /docs",
        )


def show(summary: Summary, form: Literal["json", "text"]) -> None:
    """Write the summary to standard error, as a log line if log lines are JSON."""
    if form == "json":
        logger.info("Tenora %s is ready.", summary.version, extra={"fields": asdict(summary)})
        return
    sys.stderr.write("".join(f"{line}\n" for line in summary.lines))
    sys.stderr.flush()
