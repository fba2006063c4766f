"""Resume a feed of events after its last event."""

from __future__ import annotations

from tenora_client.answers import FeedEvent

#: Three heartbeats: a connection that is silent for longer counts as lost.
SILENCE_S = 45.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0


class Resumption:
    """Position in a feed, and the pause before the next connection.

    Attributes:
        after: id of the last event, None before the first.
        reached: True once a connection was made.
    """

    def __init__(self, after: int | None) -> None:
        self.after, self.reached = after, False
        self._pause_s = _FIRST_PAUSE_S

    def note(self, event: FeedEvent) -> bool:
        """Take an event or heartbeat. Return whether the caller gets it."""
        self.reached, self._pause_s = True, _FIRST_PAUSE_S
        if event.id is not None:
            self.after = event.id
        return event.type not in ("", "end")

    def pause_s(self) -> float:
        """Return the pause before the next connection. It grows until an event arrives."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s
