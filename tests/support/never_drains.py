"""Broken scheduler for tests of the checks."""

import math

from app.scheduling.admission import Admission
from app.scheduling.admission_request import Bounds


class NeverDrains(Admission):
    """Broken scheduler: a hot adapter keeps its slot as long as requests for it arrive."""

    def __init__(self, *, slots: int, window: int, max_age_s: float, bounds: Bounds) -> None:
        super().__init__(slots=slots, window=window, max_age_s=math.inf, bounds=bounds)
