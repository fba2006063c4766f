"""Requests to the scheduler, bounds of its queue and refusals."""

from dataclasses import dataclass
from math import inf
from typing import Literal


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A request to enter the engine, sequence by sequence.

    Attributes:
        request_id: id, unique among waiting and running requests.
        tenant: tenant whose virtual counter is charged; "" for internal work (pins, preloads, smoke checks).
        weight: the tenant's share relative to others, above 0.
        version_id: version whose adapter is needed; None for the base model.
        prompts: number of tokens of each prompt, exact or estimated.
        output_tokens: expected number of output tokens per sequence.
        sequences: number of sequences over all prompts, the same for each; 0 for work without a place in the batch.
        deadline: latest time of the first token, in seconds of the scheduler's clock; None: no deadline.
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
        """Return the prompt tokens that a sequence adds.

        The first sequence of each prompt adds all of them; the other sequences share its prefill.
        """
        if not self.sequences:
            return 0
        prompt, choice = divmod(sequence, self.sequences // len(self.prompts))
        return 0 if choice else self.prompts[prompt]

    def name(self, sequence: int) -> str:
        """Return the id of a sequence; the first one has the id of the request."""
        return f"{self.request_id}#{sequence}" if sequence else self.request_id

    def validate(self) -> None:
        """Validate the numbers.

        Raises:
            ValueError: the weight is not above 0, a number is negative, or prompts do not share the sequences evenly.
        """
        if not 0 < self.weight < inf:
            raise ValueError(f"weight is {self.weight}; it must be above 0 and finite.")
        if min(self.prompts, default=0) < 0 or self.output_tokens < 0 or self.sequences < 0:
            raise ValueError(f"Numbers of tokens and sequences must be 0 or more, but this is {self}.")
        if self.sequences and (not self.prompts or self.sequences % len(self.prompts)):
            raise ValueError(
                f"sequences is {self.sequences}; it must be a multiple of the number of prompts, {len(self.prompts)}."
            )
        if self.version_id is not None and self.version_id < 0:
            raise ValueError(f"version_id is {self.version_id}; it must be 0 or more.")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the queue.

    Attributes:
        requests: maximum number of waiting requests over all tenants.
        tenant_requests: maximum number of waiting requests of one tenant.
        seconds: maximum estimated wait of a request at entry.
    """

    requests: int = 10_000
    tenant_requests: int = 1_000
    seconds: float = 600.0


class Refused(Exception):
    """The queue refused the request; no state of it is kept.

    Attributes:
        scope: ``tenant``: the caller's own queue is full; ``server``: the whole queue is full; ``deadline``: the first
            token would come too late; ``wait``: the estimated wait exceeds the bound.
        found: value that exceeds the bound: requests or seconds.
        allowed: the bound.
        retry_after_s: seconds after which the same request may be accepted.
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
        super().__init__(f"The queue refused the request ({scope}): {found:g} against a bound of {allowed:g}.")
