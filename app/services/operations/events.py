"""Event feed: changes in the registry's audit trail, and events of this node's engine.

One reader polls the trail for all subscribers. Each subscriber has a bounded queue. A new subscriber first reads
missed events from the trail (``after``), up to the position of the shared reader. No event is lost between the two.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from datetime import timedelta

from app.database import events
from app.database.session import Database
from app.domain.audit import AuditRow
from app.domain.clock import Clock, utc_now
from app.domain.errors import Busy, InvalidRequest, TooManyOpen
from app.domain.events import Audience, Event, Sequencer
from app.engine.port import EngineEvent, Status

logger = logging.getLogger(__name__)

#: Seconds between two polls of the trail while there are subscribers.
EVERY_S = 0.5
#: Maximum subscribers: of one tenant, of all tenants together, and in addition of platform keys.
MOST_OF_TENANT = 8
_MOST_OF_TENANTS = 256
_MOST_OF_PLATFORM = 32
_QUEUED = 1000
_RETRY_AFTER_S = 30
_PAGE = 200
_MOST_ID = 2**31 - 1
#: The database aborts a transaction that takes longer than this between its audit row and its commit.
_SETTLED = timedelta(seconds=10)


class Subscription:
    """Event stream of one subscriber. Call ``next`` in a loop, then ``close``.

    Attributes:
        ended: reason why the stream ended; None while it is open.
        listener: slug of the subscribed tenant; None for the platform.
    """

    def __init__(
        self, feed: "EventFeed", audience: Audience, after: int, position: int, *, listener: str | None
    ) -> None:
        self.ended: str | None = None
        self.after, self.listener = after, listener
        self._feed, self._audience, self._position = feed, audience, position
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue(_QUEUED)
        self._history: AsyncIterator[Event] | None = feed.history(audience, after, position)

    async def next(self, timeout_s: float) -> Event | None:
        """Return the next event, or None after the timeout or at the end of the stream (``ended``).

        Raises:
            RegistryUnavailable
        """
        if self._history is not None:
            async for event in self._history:
                return event
            self._history = None
        try:
            async with asyncio.timeout(timeout_s):
                return await self._queue.get()
        except TimeoutError:
            return None

    def offer(self, event: Event) -> None:
        """Queue an event. If the subscriber's queue is full, end the subscription instead of waiting."""
        if self.ended or not self._audience.hears(event) or (event.id is not None and event.id <= self.after):
            return
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self.end("The reader is too slow. Reconnect with the id of the last event that you received.")

    def end(self, reason: str) -> None:
        self.ended = self.ended or reason
        if self._queue.empty():
            self._queue.put_nowait(None)  # wakes a waiting ``next``

    def close(self) -> None:
        """Unsubscribe. Idempotent."""
        self._feed.leave(self)


class EventFeed:
    """Delivers events to the subscribers that may see them.

    Args:
        node: id of this node.

    Raises (``subscribe``, ``poll``, ``history``):
        RegistryUnavailable
    """

    def __init__(self, database: Database, engine: Status, node: str, *, clock: Clock = utc_now) -> None:
        self._database, self._node, self._clock = database, node, clock
        self._listeners: set[Subscription] = set()
        self._engine_events: deque[tuple[EngineEvent, Event]] = deque(maxlen=_QUEUED)
        self._sequencer: Sequencer[AuditRow] | None = None
        self._reading = asyncio.Lock()
        engine.subscribe(self._note)

    async def subscribe(self, audience: Audience, *, after: int | None, listener: str | None = None) -> Subscription:
        """Subscribe to new events, or resume after an event.

        Args:
            after: id of the last event that was received; None for new events only.
            listener: tenant whose key subscribes; None for a platform key.

        Raises:
            InvalidRequest: ``after`` is not a valid id.
            TooManyOpen: the tenant has its maximum of subscriptions.
            Busy: there are too many subscribers.
        """
        if after is not None and not 0 <= after <= _MOST_ID:
            raise InvalidRequest(f"after is {str(after)[:20]}, but must be 0 to {_MOST_ID}.", param="after")
        async with self._reading:
            self._check_place(listener)
            sequencer = await self._begin()
            if after is None:
                async with self._database.read() as connection:
                    after = await events.newest_id(connection)
            subscription = Subscription(self, audience, after, sequencer.position, listener=listener)
            self._listeners.add(subscription)
        return subscription

    async def poll(self) -> None:
        """Read new events and deliver them to the subscribers."""
        async with self._reading:
            if not self._listeners:
                # Without subscribers, forget the position: the next subscriber begins at the end of the trail.
                self._sequencer = None
                self._engine_events.clear()
                return
            sequencer = await self._begin()
            missing = sequencer.missing
            async with self._database.read() as connection:
                late = await events.rows_with(connection, missing) if missing else []
                above = await events.rows_above(connection, sequencer.position, limit=_PAGE)
            for row in [*sequencer.late(late), *sequencer.release(above)]:
                self._tell(_event(row))
            for event in await self._named():
                self._tell(event)

    async def history(self, audience: Audience, after: int, upto: int) -> AsyncIterator[Event]:
        """Yield the audience's events with ``after < id <= upto``."""
        while after < upto:
            async with self._database.read() as connection:
                rows = await events.rows_between(connection, after, upto, limit=_PAGE)
            for row in rows:
                event = _event(row)
                if audience.hears(event):
                    yield event
            if len(rows) < _PAGE:
                return
            after = rows[-1].id

    def leave(self, subscription: Subscription) -> None:
        self._listeners.discard(subscription)

    def end(self) -> None:
        """End every subscription, because the server stops."""
        for subscription in self._listeners:
            subscription.end("The server is shutting down.")

    def _check_place(self, listener: str | None) -> None:
        """Refuse a subscriber beyond the maximum. One tenant cannot use up other tenants' or the platform's places."""
        platform = sum(subscription.listener is None for subscription in self._listeners)
        if listener is None:
            if platform >= _MOST_OF_PLATFORM:
                message = f"Platform keys have {_MOST_OF_PLATFORM} event feeds open, which is the limit. Close one."
                raise Busy(message, retry_after=_RETRY_AFTER_S)
            return
        if sum(subscription.listener == listener for subscription in self._listeners) >= MOST_OF_TENANT:
            message = f"This tenant has {MOST_OF_TENANT} event feeds open, which is the limit. Close one."
            raise TooManyOpen(message, retry_after=_RETRY_AFTER_S)
        if len(self._listeners) - platform >= _MOST_OF_TENANTS:
            message = f"Tenants have {_MOST_OF_TENANTS} event feeds open, which is the limit. Try again later."
            raise Busy(message, retry_after=_RETRY_AFTER_S)

    async def _begin(self) -> Sequencer[AuditRow]:
        if self._sequencer is None:
            async with self._database.read() as connection:
                position = await events.settled_id(connection, before=self._clock() - _SETTLED)
            self._sequencer = Sequencer(position, clock=time.monotonic)
        return self._sequencer

    def _tell(self, event: Event) -> None:
        for subscription in self._listeners:
            subscription.offer(event)

    def _note(self, event: EngineEvent) -> None:
        """Record an engine event. The engine calls this in the event loop; names are looked up later."""
        shown = Event(None, self._clock(), f"engine.{event.kind}", None, "", node=self._node, seconds=event.seconds)
        self._engine_events.append((event, shown))

    async def _named(self) -> list[Event]:
        if not self._engine_events:
            return []
        happened = list(self._engine_events)
        async with self._database.read() as connection:
            names = await events.version_names(connection, {event.version_id for event, _ in happened})
        # Events that arrived during the lookup stay for the next poll.
        for entry in happened:
            with contextlib.suppress(ValueError):  # the bounded queue has dropped it
                self._engine_events.remove(entry)
        named = []
        for event, shown in happened:
            tenant, subject = names.get(event.version_id, (None, f"version {event.version_id}"))
            named.append(Event(None, shown.at, shown.type, tenant, subject, node=shown.node, seconds=shown.seconds))
        return named


def _event(row: AuditRow) -> Event:
    return Event(row.id, row.at, row.action, row.tenant, row.subject, row.actor, row.before, row.after)
