"""Findings of a run of :mod:`tests.endurance.fleet`."""

from dataclasses import dataclass, field
from typing import Any

#: Outcomes of a request whose gateway was killed.
OWN_GATEWAY = frozenset({"cut off", "no server"})


@dataclass(slots=True)
class Stream:
    """Stream as its client saw it.

    Attributes:
        told: prompt and output tokens, as the last event said.
        errors: number of error events.
        end: ``done``, or ``cut`` if the connection broke.
    """

    gateway: int
    kill: str
    request_id: str = ""
    told: tuple[int, int] = (0, 0)
    errors: int = 0
    end: str = "cut"

    @property
    def right(self) -> bool:
        """Return True for an end that a stream may have."""
        own_gateway = self.kill == "gateway" and self.gateway == 1
        return self.errors <= 1 and (self.end == "done" or own_gateway)


@dataclass(slots=True)
class Books:
    """Findings of a run.

    Attributes:
        outcomes: outcomes of the requests for whole answers, by gateway. The second one is killed.
        proxied: outcomes of those that went through nginx, which asks the other gateway if one is killed.
        streams: ends of the streams by kill: ``whole``, ``error event`` or ``cut``.
        wrong_streams: streams that ended otherwise than they may.
        missing, double: request ids of whole answers without a record, and with several.
        wrong: request id -> tokens that the answer named, and those of the record.
        budget_exact, rate_exact: whether both gateways together grant exactly a budget, and exactly a rate.
        leases_returned: whether all streams that a limit allows may run, and not one more.
        recovery_s: seconds until both replicas were ready again, by kill.
        ended_s: seconds until the streams of a killed gateway had ended at the replicas.
    """

    sent: int = 0
    outcomes: list[dict[str, int]] = field(default_factory=list)
    proxied: dict[str, int] = field(default_factory=dict)
    streams: dict[str, dict[str, int]] = field(default_factory=dict)
    wrong_streams: list[Stream] = field(default_factory=list)
    told: int = 0
    records: int = 0
    missing: list[str] = field(default_factory=list)
    double: list[str] = field(default_factory=list)
    wrong: dict[str, Any] = field(default_factory=dict)
    budget_exact: bool = False
    leases_returned: bool = False
    rate_exact: bool = False
    recovery_s: dict[str, float] = field(default_factory=dict)
    ended_s: float = -1
    seconds: float = 0

    @property
    def lost(self) -> int:
        """Requests that failed, but for those that were sent to the killed gateway itself."""
        first, killed = self.outcomes
        allowed = (first, {"200"}), (killed, {"200"} | OWN_GATEWAY), (self.proxied, {"200"})
        return sum(count for outcomes, names in allowed for name, count in outcomes.items() if name not in names)

    @property
    def right(self) -> bool:
        faults = self.lost or self.wrong_streams or self.missing or self.double or self.wrong
        exact = self.budget_exact and self.rate_exact and self.leases_returned
        return not faults and exact and self.ended_s >= 0
