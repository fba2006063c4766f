"""Prefill backlog: prompt tokens that were admitted to the engine and are not prefilled yet.

The engine prefills prompts in order of arrival, regardless of tenant. One tenant's long prompts there delay every other
tenant, even a tenant with little service. Admission therefore bounds the backlog to what keeps the engine busy, and
each tenant to a part of it. Other requests wait in the queue, where the order is fair.
"""

from app.scheduling.queues import Request, Tenant

#: Engine steps that one tenant's part of the backlog fills: one step in prefill, the next one ready.
STEPS = 2

#: Number of tenants' parts in the whole backlog.
PART = 4


class PrefillBacklog:
    """Counts prompt tokens from admission to the first token.

    A prompt longer than a tenant's part counts as that part, so that it can be admitted.

    Args:
        step_tokens: maximum number of prompt tokens per engine step.
    """

    def __init__(self, step_tokens: float) -> None:
        self._part = STEPS * step_tokens
        self._most = PART * self._part
        self._tokens = 0.0

    def has_room(self, tokens: int) -> bool:
        """Return whether this many prompt tokens fit into the backlog."""
        return self._tokens + min(tokens, self._part) <= self._most

    def fills_part(self, tenant: Tenant, tokens: int) -> bool:
        """Return whether a tenant that has a backlog would exceed its part with this many more tokens."""
        return tenant.prefill_backlog > 0 and tenant.prefill_backlog + min(tokens, self._part) > self._part

    def add(self, request: Request) -> None:
        """Add an admitted request."""
        tokens = request.prefill_backlog = min(request.prompt_tokens, self._part)
        request.tenant.prefill_backlog += tokens
        self._tokens += tokens

    def remove(self, request: Request) -> None:
        """Remove a request that is prefilled or has ended; idempotent."""
        tokens, request.prefill_backlog = request.prefill_backlog, 0
        request.tenant.prefill_backlog -= tokens
        self._tokens -= tokens
