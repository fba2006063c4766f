"""What the scheduler knows of a request, and what it says when it refuses one."""

from dataclasses import dataclass
from math import inf
from typing import Literal


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """One request that asks to enter the engine, sequence by sequence.

    Attributes:
        request_id: unique among those that wait or run.
        tenant: whose virtual counter pays for it; "" for the server's own work (pins, preloads, smoke checks).
        weight: the tenant's share against others', above 0.
        version_id: the version whose adapter it needs, or None for the base model.
        prompts: tokens of each of its prompts, exact or estimated.
        output_tokens: tokens that each of its sequences is expected to generate.
        sequences: of all prompts together, as many of each; 0 for work that takes no place in the engine's batch.
        deadline: when its first token must be there, in the scheduler's seconds; None: whenever it comes.
    """

    request_id: str
    tenant: str
    weight: float
    version_id: int | None
    prompts: tuple[int, ...]
    output_tokens: int
    sequences: int = 1
    deadline: float | None = None

    def prompt_tokens(self, sequence: int) -> int:
        """Tokens of a prompt that one sequence brings: all of them the first of each prompt, as the others share it."""
        if not self.sequences:
            return 0
        prompt, choice = divmod(sequence, self.sequences // len(self.prompts))
        return 0 if choice else self.prompts[prompt]

    def name(self, sequence: int) -> str:
        """The id of one of its sequences; that of the first is the request's."""
        return f"{self.request_id}#{sequence}" if sequence else self.request_id

    def validate(self) -> None:
        """Check its numbers.

        Raises:
            ValueError: the weight is not above 0, a number is negative, or prompts do not share the sequences evenly.
        """
        if not 0 < self.weight < inf:
            raise ValueError(f"weight: found {self.weight}, allowed above 0")
        if min(self.prompts, default=0) < 0 or self.output_tokens < 0 or self.sequences < 0:
            raise ValueError(f"tokens and sequences: found a negative number in {self}")
        if self.sequences and (not self.prompts or self.sequences % len(self.prompts)):
            raise ValueError(
                f"sequences: found {self.sequences}, allowed as many of each prompt of {len(self.prompts)}"
            )
        if self.version_id is not None and self.version_id < 0:
            raise ValueError(f"version_id: found {self.version_id}, allowed 0 or more")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long the queue may grow.

    Attributes:
        requests: most requests that wait, all tenants together.
        tenant_requests: most requests of one tenant that wait.
        seconds: longest estimated wait of a request that is let into the queue.
    """

    requests: int = 10_000
    tenant_requests: int = 1_000
    seconds: float = 600.0


class Refused(Exception):
    """The request was not let into the queue; nothing of it is kept.

    Attributes:
        scope: ``tenant``: the caller's own queue is full; ``server``: everybody's is; ``deadline``: its first token
            would come too late; ``wait``: the estimated wait is beyond the bound.
        found: the number that is beyond its bound: requests, or seconds.
        allowed: that bound.
        retry_after_s: after which the same request may be let in.
    """

    def __init__(
        self,
        scope: Literal["tenant", "server", "deadline", "wait"],
        *,
        found: float,
        allowed: float,
        retry_after_s: float,
    ) -> None:
        self.scope, self.found, self.allowed, self.retry_after_s = scope, found, allowed, retry_after_s
        super().__init__(f"{scope}: found {found}, allowed {allowed}")
