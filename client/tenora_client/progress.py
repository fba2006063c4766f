"""Progress of a publication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Progress of a publication.

    Attributes:
        phase: ``reading`` while files are hashed, ``sending`` while bytes go out, ``checking`` while the server
            validates them and runs the smoke check.
        done_bytes: bytes of this phase that are done.
        total_bytes: size of all files.
    """

    phase: str
    done_bytes: int
    total_bytes: int

    @property
    def fraction(self) -> float:
        """Part of the phase that is done, 0 to 1."""
        return self.done_bytes / self.total_bytes if self.total_bytes else 1.0


OnProgress = Callable[[Progress], None]
