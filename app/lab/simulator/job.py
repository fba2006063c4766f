"""One request on its way through the simulation."""

import math
from typing import Literal

from app.lab.simulator.workload import Arrival


class Job:
    """What becomes of an arrival.

    Attributes:
        request_id: as the scheduler knows it.
        version_id: whose adapter it runs with; None: the base model.
        admitted_at: when it was let into the engine; NaN while it waits.
        first_at: when its first token was there; NaN until then.
        queued: None unless it waits; ``runnable``: the model or adapter was there when it came.
        last_step: number of the step that makes its last token; 0 until its first.
        gone: it has ended, served or not.
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
        """It has not been let into the engine."""
        return math.isnan(self.admitted_at)
