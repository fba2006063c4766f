"""Simulated request."""

import math
from typing import Literal

from app.lab.simulator.workload import Arrival


class Job:
    """State of a request.

    Attributes:
        request_id: id in the scheduler.
        version_id: version of its adapter, None for the base model.
        admitted_at: time of admission to the engine, NaN while it waits.
        first_at: time of the first token, NaN before it.
        queued: None unless the request waits. ``runnable`` if the model or adapter was in memory at its arrival.
        last_step: number of the step that makes the last token, 0 before the first token.
        gone: True after the end of the request, served or not.
    """

    __slots__ = ("admitted_at", "arrival", "first_at", "gone", "last_step", "queued", "request_id", "version_id")

    def __init__(self, request_id: str, arrival: Arrival) -> None:
        self.request_id, self.arrival = request_id, arrival
        self.version_id = arrival.version_id or None
        self.admitted_at = self.first_at = math.nan
        self.queued: Literal["runnable", "unstaged"] | None = None
        self.last_step = 0
        self.gone = False

    @property
    def waits(self) -> bool:
        """True before the admission to the engine."""
        return math.isnan(self.admitted_at)
