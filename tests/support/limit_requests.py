"""Requests of callers that have limits."""

import asyncio
from dataclasses import replace

from adapters.identity import VersionKey
from app.domain.access import Caller
from app.domain.adapters import ResolvedVersion
from app.domain.limits.limits import TokenBound
from app.engine.port import Endpoint, EngineRequest, TokenUsage
from app.services.limits.memory import MemoryAccounts
from app.services.limits.prices import PriceService
from app.services.limits.service import LimitService
from app.services.usage.meter import Meter
from tests.support.registry import Node
from tests.support.serving import NoEngine

SCOPES = ["inference", "usage:read"]


WHOLE: dict[str, object] = {"choices": [{"finish_reason": "stop"}]}


def request(identity: str) -> EngineRequest:
    key = VersionKey(3, "c" * 64, "w" * 64, 1, 1)
    return EngineRequest(identity, Endpoint.COMPLETIONS, {"prompt": "x"}, "prices", key, "salt")


class Sizes:
    """Most tokens of every request, and the number of requests that were counted."""

    def __init__(self, most: int = 0) -> None:
        self.most, self.counted = most, 0

    def __call__(self, _request: EngineRequest) -> TokenBound:
        self.counted += 1
        return TokenBound(0, self.most)


def service(node: Node, sizes: Sizes | None = None) -> LimitService:
    accounts = MemoryAccounts(node.database, clock=node.clock, monotonic=node.clock.monotonic)
    return LimitService(sizes or Sizes(), accounts, PriceService(node.database, clock=node.clock))


async def caller_of(node: Node, tenant: str, **limits: int) -> Caller:
    """Create a key and return its authenticated caller."""
    new = await node.keys.create(tenant, name="test", scopes=SCOPES, restrictions={"limits": limits}, actor="cli")
    return await node.keys.authenticate(new.text)


async def answered(
    meter: Meter,
    limits: LimitService,
    caller: Caller,
    engine: NoEngine,
    one: EngineRequest,
    version: ResolvedVersion | None = None,
) -> None:
    """Run one request for which the engine reports 7 tokens."""

    async def work() -> dict[str, object]:
        await asyncio.sleep(0)
        engine.usages[one.request_id] = TokenUsage(4, 0, 3, 0.1)
        return WHOLE

    key = version.key if version else None
    permit, one = await limits.admit(caller, one, version), replace(one, adapter=key)
    await meter.metered(caller, engine.begin(one), work(), permit=permit)
