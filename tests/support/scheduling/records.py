"""State of requests, tenants and versions in the reference model."""

from dataclasses import dataclass
from math import inf

from app.scheduling.admission_request import AdmissionRequest


@dataclass(eq=False)
class Request:
    parent: AdmissionRequest
    sequence: int
    number: int
    arrived: float
    running: bool = False
    first: bool = False
    started: float = 0.0
    cost: float = 0.0
    start_tag: float = 0.0
    threshold: float = 0.0
    prefilled: bool = False

    @property
    def name(self) -> str:
        return self.parent.name(self.sequence)

    @property
    def prompt_tokens(self) -> int:
        return self.parent.prompt_tokens(self.sequence)


@dataclass(eq=False)
class Account:
    counter: float = 0.0
    outstanding: float = 0.0
    new: bool = False
    average: float | None = None


@dataclass(eq=False)
class Version:
    service: float = 0.0
    drains_since: float | None = None
    closed_at: float = -inf
    closed: int = 0
    ahead: int = 0
    limit: float | None = None  # overtaking budget; set once the version is aged
    filling: bool = False  # True until all requests that waited when it got its slot are admitted
