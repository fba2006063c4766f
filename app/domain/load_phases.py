"""Phases of a cold load."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadPhases:
    """Phases of one cold load, in seconds.

    Attributes:
        fetch_s: fetch from the store to disk.
        stage_s: staging from disk into host memory.
        wait_s: wait for a slot.
        copy_s: copy into the slot.
    """

    fetch_s: float
    stage_s: float
    wait_s: float
    copy_s: float

    @property
    def total_s(self) -> float:
        return self.fetch_s + self.stage_s + self.wait_s + self.copy_s
