"""Prompts that the engine has been given and has not read yet.

An engine reads prompts in the order in which they came, whoever sent them. What one tenant's long prompts take there,
everybody else waits for, however little they were served. So no more is given to it than keeps it reading, and of that
no more than a part to one tenant: the others wait in the queue, where turns are fair.
"""

from app.scheduling.queues import Request, Tenant

#: Steps full of one tenant's prompts that the engine may have before it: while it reads one, the next is there already.
STEPS = 2

#: A tenant's part of all that may be unread is one by this.
PART = 4


class PrefillBacklog:
    """Counts tokens of prompts from their admission to their first token.

    A prompt that is longer than a tenant's part counts as that part, so that it has its turn too.

    Args:
        step_tokens: most tokens of prompts that the engine reads in one step.
    """

    def __init__(self, step_tokens: float) -> None:
        self._part = STEPS * step_tokens
        self._most = PART * self._part
        self._tokens = 0.0

    def has_room(self, tokens: int) -> bool:
        """Whether prompts of so many tokens may be given to the engine beside what it has to read."""
        return self._tokens + min(tokens, self._part) <= self._most

    def fills_part(self, tenant: Tenant, tokens: int) -> bool:
        """Whether they would be more than the part of this tenant, of whose prompts some are unread."""
        return tenant.unread > 0 and tenant.unread + min(tokens, self._part) > self._part

    def add(self, request: Request) -> None:
        """A request is admitted."""
        tokens = request.unread = min(request.prompt_tokens, self._part)
        request.tenant.unread += tokens
        self._tokens += tokens

    def remove(self, request: Request) -> None:
        """Its prompts are read, or it has ended; a second call changes nothing."""
        tokens, request.unread = request.unread, 0
        request.tenant.unread -= tokens
        self._tokens -= tokens
