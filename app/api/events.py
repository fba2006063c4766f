"""``GET /admin/events`` and ``GET /v1/events``: server-sent events about adapters and the engine.

A client resumes with ``Last-Event-ID``. Engine events have no id: they are sent once, by the node on which they
happened, and cannot be replayed. The last event of a feed that the server ends has type ``end`` and gives the reason.
"""

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import BaseModel, Field

from app.api.auth import Admin, GatewayDep, Owner, authenticate, require_owner
from app.api.openapi_components import event_stream, reference
from app.api.schemas import answers
from app.api.streaming import EventResponse
from app.domain.access import Scope
from app.domain.errors import Forbidden, InvalidRequest, RegistryUnavailable, Unauthenticated
from app.domain.events import Audience, Event
from app.services.operations.events import Subscription

router = APIRouter(tags=["events"])

#: Interval in seconds of re-checking the key's restrictions. A feed that they forbid ends after about this time.
_CHECK_S = 1.0
_HEARTBEAT_S = 15.0
_RETRY_MS = 2000

Reader = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_READ))]
After = Annotated[
    int | None, Query(ge=0, description="Id of the last event received; `Last-Event-ID` takes precedence")
]
LastEventId = Annotated[
    str | None, Header(description="Id of the last event received, sent by a client that reconnects")
]


class EventOut(BaseModel):
    """An event of the feed. The event's type is also in the field `event` of the server-sent event."""

    id: int | None = Field(description="Id to resume from; null for an event of the engine")
    at: datetime
    type: str = Field(description="Action, such as `version.publish` or `alias.move`; `engine.load` and others")
    tenant: str | None = Field(description="Slug of the owner; null for an event of the platform")
    subject: str = Field(description="Name of the changed object")
    actor: str | None = Field(description="Id of the key that made the change")
    before: Any = Field(description="State before the change, if the event has it")
    after: Any = Field(description="State after the change, if the event has it")
    node: str | None = Field(description="Server of an event of the engine")
    seconds: float | None = Field(description="Duration of a load, in seconds")


class FeedEndOut(BaseModel):
    """Last event of a feed that the server ends. Its type is `end`."""

    reason: str


#: Data of a feed's events, by the component's name.
FEED: dict[str, Any] = {"FeedEventData": EventOut | FeedEndOut}
_EVENTS = event_stream(reference("FeedEventData"), "Events, each with its `id` and type in the field `event`")
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {"schema": _EVENTS}},
        "description": "Events, until the client or the server ends the stream",
    }
}


@router.get(
    "/admin/events",
    response_class=Response,
    summary="Stream all events",
    responses=answers(400, 404) | _STREAM,
)
async def stream_all_events(
    request: Request,
    caller: Admin,
    gateway: GatewayDep,
    after: After = None,
    last_event_id: LastEventId = None,
    tenant: Annotated[str | None, Query(description="Show only events of this tenant")] = None,
) -> Response:
    """Send `Last-Event-ID` to resume after a disconnect.

    Events of the engine have no id and cannot be replayed. The feed's last event has the type `end` and gives a
    reason.
    """
    audience = Audience()
    if tenant is not None:
        audience = Audience(tenant, (await gateway.tenants.get(tenant)).created_at)
    subscription = await gateway.events.subscribe(audience, after=_from(last_event_id, after))
    return _response(_Feed(subscription, _key_check(request, caller.key_id, Scope.ADMIN)))


@router.get(
    "/v1/events",
    response_class=Response,
    summary="Stream events about the tenant's adapters",
    responses=answers(400, 429) | _STREAM,
)
async def stream_events(
    request: Request, owner: Reader, gateway: GatewayDep, after: After = None, last_event_id: LastEventId = None
) -> Response:
    """The feed has the events of the tenant's adapters, without those about its keys.

    It resumes like the feed of all events.
    """
    since = (await gateway.tenants.get(owner.tenant)).created_at
    audience = Audience(owner.tenant, since, whole=False)
    after = _from(last_event_id, after)
    subscription = await gateway.events.subscribe(audience, after=after, listener=owner.tenant)
    return _response(_Feed(subscription, _key_check(request, owner.caller.key_id, Scope.ADAPTERS_READ)))


class _Feed:
    """Format a subscription as server-sent events, until its key stops working."""

    def __init__(self, subscription: Subscription, allowed: Callable[[], Awaitable[bool]]) -> None:
        self._subscription, self._allowed = subscription, allowed
        self._begun = self._over = False
        self._checked = self._spoke = time.monotonic()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if self._over:
            raise StopAsyncIteration
        if not self._begun:
            self._begun = True
            return f"retry: {_RETRY_MS}\n\n"
        while True:
            if time.monotonic() - self._checked >= _CHECK_S:
                self._checked = time.monotonic()
                if not await self._allowed():
                    return self._end("The API key is no longer valid. Connect again with a valid key.")
            event = await self._subscription.next(_CHECK_S)
            if self._subscription.ended:
                return self._end(self._subscription.ended)
            if event is not None:
                self._spoke = time.monotonic()
                return _text(event)
            if time.monotonic() - self._spoke >= _HEARTBEAT_S:
                self._spoke = time.monotonic()
                return ": still here\n\n"

    async def aclose(self) -> None:
        self._over = True
        self._subscription.close()

    def _end(self, reason: str) -> str:
        self._over = True
        return _last_event(reason)


def _response(feed: "_Feed") -> EventResponse:
    return EventResponse(feed, {}, final_event=lambda error: _last_event(error.message))


def _last_event(reason: str) -> str:
    return f"event: end\ndata: {json.dumps({'reason': reason})}\n\n"


def _text(event: Event) -> str:
    shown = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(event).items()}
    identity = "" if event.id is None else f"id: {event.id}\n"
    return f"{identity}event: {event.type}\ndata: {json.dumps(shown)}\n\n"


def _from(last_event_id: str | None, after: int | None) -> int | None:
    if last_event_id is None:
        return after
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= 10):
        raise InvalidRequest(
            f"Last-Event-ID is {last_event_id[:20]!r}. Send the id of an event, or omit the header.",
            param="Last-Event-ID",
        )
    return int(last_event_id)


def _key_check(request: Request, key_id: str, scope: Scope) -> Callable[[], Awaitable[bool]]:
    """Build a check that the request's key still works and holds the scope. It passes if the registry is down."""

    async def allowed() -> bool:
        try:
            caller = await authenticate(request)
        except (Unauthenticated, Forbidden):
            return False
        except RegistryUnavailable:
            return True
        return caller.key_id == key_id and (scope in caller.scopes or Scope.ADMIN in caller.scopes)

    return allowed
