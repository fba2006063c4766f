"""``/v1/session``: sign in to the console with an API key, show the session, and sign out."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from app.api.auth import GatewayDep, authenticate, authenticate_key
from app.api.schemas import KeyOut, answers
from app.api.session_cookie import check_console, remove_cookie, set_cookie, token_of
from app.domain.access import Caller, Key
from app.services.access.sessions import IDLE, Session

router = APIRouter(tags=["keys"])

_NO_STORE = "no-store"


class SessionOut(BaseModel):
    """A session of the console. It has the rights of its key."""

    created_at: datetime
    expires_at: datetime = Field(description="Latest end of the session")
    idle_s: int = Field(description="Seconds without a request after which the session ends")
    key: KeyOut = Field(description="Key that the session was opened with")

    @classmethod
    def of(cls, session: Session, key: Key) -> "SessionOut":
        return cls(
            created_at=session.created_at,
            expires_at=session.expires_at,
            idle_s=int(IDLE.total_seconds()),
            key=KeyOut.of(key),
        )


@router.post("/v1/session", status_code=201, summary="Sign in to the console with an API key", responses=answers())
async def create_session(
    request: Request, response: Response, caller: Annotated[Caller, Depends(authenticate_key)], gateway: GatewayDep
) -> SessionOut:
    """The answer sets a cookie with an opaque token, for the console's own script only.

    Send the key in a header. The session ends by sign-out, after an hour without requests, after twelve hours, or with
    its key.
    """
    check_console(request)
    session = await gateway.sessions.begin(caller, replaced=token_of(request))
    set_cookie(request, response, session)
    response.headers["cache-control"] = _NO_STORE
    return SessionOut.of(session, await gateway.keys.own(caller))


@router.get("/v1/session", summary="Show the session of the console", responses=answers(404))
async def get_session(
    response: Response, caller: Annotated[Caller, Depends(authenticate)], gateway: GatewayDep
) -> SessionOut:
    """A request with a key instead of a session gets a 404."""
    session = await gateway.sessions.show(caller)
    response.headers["cache-control"] = _NO_STORE
    return SessionOut.of(session, await gateway.keys.own(caller))


@router.delete("/v1/session", status_code=204, summary="Sign out of the console", responses=answers(404))
async def end_session(
    request: Request, response: Response, caller: Annotated[Caller, Depends(authenticate)], gateway: GatewayDep
) -> None:
    """The session ends on every server within a second, together with its requests in progress."""
    await gateway.sessions.end(caller)
    remove_cookie(request, response)
