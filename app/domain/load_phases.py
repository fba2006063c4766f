"""Phases of a cold load."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadPhases:
    """The seconds of one cold load: from the store, from disk to host memory, waiting for a slot, into the slot."""

    fetch_s: float
    stage_s: float
    wait_s: float
    copy_s: float

    @property
    def total_s(self) -> float:
        return self.fetch_s + self.stage_s + self.wait_s + self.copy_s
