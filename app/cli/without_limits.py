"""``python -m app.cli.without_limits server serve``: Tenora without limits and metering, to measure their cost."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from functools import cached_property
from typing import Any, cast

from app.domain.access import Caller
from app.domain.limits.limiter import RateLimitStatus, Reservation
from app.domain.money import FREE
from app.engine.port import Answer, AnswerEvent, EngineCall, EventStream
from app.services.limits.service import LimitService, Permit
from app.services.usage.meter import Meter
from app.wiring import container
from app.wiring.gateway import Gateway
from tenora_client.cli.root import app

_NOTHING = Permit("", Reservation((), 0, 0, 0, 0), RateLimitStatus(None, None), FREE)


class _NoLimits(LimitService):
    async def admit(self, *_request: object, **_options: object) -> Permit:
        return _NOTHING


class _NoMeter(Meter):
    async def metered(
        self,
        _caller: Caller,
        _call: EngineCall,
        work: Awaitable[Answer],
        *,
        permit: Permit,  # noqa: ARG002 - a keyword
    ) -> dict[str, Any] | EventStream[str]:
        answer = await work
        return answer if isinstance(answer, dict) else cast("EventStream[str]", _texts(answer))


class _Unguarded(Gateway):
    """Gateway whose requests bypass limits and metering. Not a setting: no server of tenants should run like this."""

    @cached_property
    def limits(self) -> LimitService:
        guarded = super().limits
        return _NoLimits(self._tokens.most, guarded.accounts, guarded.prices)

    @cached_property
    def meter(self) -> Meter:
        return _NoMeter(self.ledger, self.limits)


async def _texts(events: EventStream[AnswerEvent]) -> AsyncGenerator[str]:
    async with aclosing(events):
        async for event in events:
            yield event.text


if __name__ == "__main__":
    container.Gateway = _Unguarded  # type: ignore[attr-defined]
    app()
