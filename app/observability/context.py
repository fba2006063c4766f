"""What is known of the request that is being served, for every log line, metric and span that it leaves."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.observability.tracing import Trace


@dataclass(slots=True)
class RequestContext:
    """One request; the tasks that it starts share it.

    Attributes:
        request_id: made by the server.
        confidential: its body holds a prompt, which errors may quote.
        tenant: the caller's slug, once it is known; a platform key has none.
        key_id: of the caller's key, once that is known.
        code: of the error that it ended with, as clients see it; also in the middle of a stream.
        trace: where its stages are recorded; None: nowhere.
    """

    request_id: str
    confidential: bool = False
    tenant: str | None = None
    key_id: str | None = None
    code: str | None = None
    trace: "Trace | None" = None


#: None outside of requests.
CURRENT: ContextVar[RequestContext | None] = ContextVar("request", default=None)


def note_caller(tenant: str | None, key_id: str) -> None:
    """Who calls is known now."""
    if (request := CURRENT.get()) is not None:
        request.tenant, request.key_id = tenant, key_id


def note_error(code: str) -> None:
    """The request ends with this error; ``code`` is one of ours."""
    if (request := CURRENT.get()) is not None:
        request.code = code
