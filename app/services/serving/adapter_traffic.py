"""Recent request counts per version, in bounded memory."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from app.domain.adapters import ResolvedVersion

#: Name of all versions that are counted together. No version has this name, because theirs contain a slash.
OTHER = "other"

_REST = (0, OTHER)


@dataclass(frozen=True, slots=True)
class Share:
    """Requests of one version, or of all others together, within the window.

    Attributes:
        version_id: row id of the version; 0 for ``other``.
        name: ``tenant/adapter@n``, or ``other``.
        requests: number of requests.
    """

    version_id: int
    name: str
    requests: int


class Traffic:
    """Sliding-window counter of requests by version. The window moves in steps.

    Versions beyond ``distinct`` in one step are counted together, so that a client that requests one adapter after the
    other cannot fill the memory.
    """

    def __init__(
        self,
        *,
        window_s: float = 300.0,
        steps: int = 10,
        distinct: int = 10_000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._step_s, self._steps, self._distinct, self._monotonic = window_s / steps, steps, distinct, monotonic
        self._counts: deque[tuple[int, Counter[tuple[int, str]]]] = deque()

    def requested(self, version: ResolvedVersion) -> None:
        """Count one request."""
        counts = self._now()
        key = (version.key.version_id, f"{version.owner}/{version.adapter}@{version.number}")
        counts[key if key in counts or len(counts) < self._distinct else _REST] += 1

    def most(self, limit: int) -> list[Share]:
        """Return at most ``limit`` versions with the most requests in the window, then the sum of all others."""
        self._now()
        total: Counter[tuple[int, str]] = Counter()
        for _, counts in self._counts:
            total.update(counts)
        rest = total.pop(_REST, 0)
        ranked = sorted(total.items(), key=lambda item: (-item[1], item[0]))
        rest += sum(requests for _, requests in ranked[limit:])
        return [Share(*version, requests) for version, requests in [*ranked[:limit], (_REST, rest)]]

    def _now(self) -> Counter[tuple[int, str]]:
        step = int(self._monotonic() / self._step_s)
        while self._counts and self._counts[0][0] <= step - self._steps:
            self._counts.popleft()
        if not self._counts or self._counts[-1][0] != step:
            self._counts.append((step, Counter()))
        return self._counts[-1][1]
