"""Answers as the services return them to the routes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from app.domain.errors import TenoraError
from app.domain.limits.limiter import RateLimitStatus
from app.domain.load_phases import LoadPhases
from app.engine.port import EventStream


@dataclass(frozen=True, slots=True)
class Served:
    """An answer and the version that produced it.

    Attributes:
        answer: a whole answer, or its event stream.
        version: ``pricing@3``, or ``retail/pricing@3`` of another tenant; None for the base model.
        load: phases of the adapter load that the request waited for; None if the adapter had a slot.
        rate_limits: the caller's rate limit status.
        ignored: names of request fields that were ignored, possibly repeated.
        last_event: formats the end of a stream that an error ends; None: the error in the route's envelope.
    """

    answer: dict[str, Any] | EventStream[str]
    version: str | None
    load: LoadPhases | None = None
    rate_limits: RateLimitStatus | None = None
    ignored: Iterable[str] = ()
    last_event: Callable[[TenoraError], str] | None = None
