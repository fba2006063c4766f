"""What the model keeps of requests, tenants and versions."""

from dataclasses import dataclass
from math import inf

from app.scheduling import reserve
from app.scheduling.ticket import Ticket


@dataclass(eq=False)
class Request:
    ticket: Ticket
    number: int
    arrived: float
    running: bool = False
    started: float = 0.0
    cost: float = 0.0
    reserved: bool = False
    read: bool = False


@dataclass(eq=False)
class Account:
    counter: float = 0.0
    outstanding: float = 0.0
    average: float | None = None
    weight: float = 1.0


@dataclass(eq=False)
class Version:
    service: float = 0.0
    drains_since: float | None = None
    closed_at: float = -inf
    closed: int = 0
    ahead: int = 0
    limit: float | None = None  # of one that has waited too long
    filling: bool = False  # some that wait for it have waited since before it had its slot


@dataclass(eq=False)
class Peaks:
    """The most places that were taken lately, now and before."""

    since: float = 0.0
    now: int = 0
    before: int = 0

    def note(self, taken: int, now: float) -> None:
        if now >= self.since + reserve.MEMORY_S:
            self.before = taken if now - self.since >= 2 * reserve.MEMORY_S else self.now
            self.now, self.since = taken, now
        self.now = max(self.now, taken)
