"""Cookie of the console's session: when it counts, and its name and attributes.

The cookie counts only in requests that the console's own script sent: with the header ``x-tenora-console: 1``, which a
form or an image cannot send, and with ``Sec-Fetch-Site: same-origin``, which a script cannot set.
"""

from starlette.requests import Request
from starlette.responses import Response

from app.domain.errors import Forbidden
from app.services.access.sessions import LIFETIME, Session

HEADER = "x-tenora-console"
#: A browser accepts this name only with Secure, the path / and no domain, so that no other host can set it.
SECURE_NAME = "__Host-tenora"
#: Name without Secure, for HTTP on this machine.
LOCAL_NAME = "tenora"
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def token_of(request: Request) -> str | None:
    """Return the token of the request's session; None if it has none that counts."""
    if "cookie" not in request.headers or not _is_from_console(request):
        return None
    return request.cookies.get(_name(request))


def check_console(request: Request) -> None:
    """Check that the console's own script sent the request.

    Raises:
        Forbidden
    """
    if not _is_from_console(request):
        raise Forbidden(
            f"A session needs the header {HEADER}: 1 and a browser that sends Sec-Fetch-Site: same-origin. Open the "
            "console over HTTPS, or on localhost. Scripts send an API key instead."
        )


def set_cookie(request: Request, response: Response, session: Session) -> None:
    """Give the token of a new session to the browser."""
    response.set_cookie(
        _name(request),
        session.token or "",
        max_age=int(LIFETIME.total_seconds()),
        secure=not _is_local(request),
        httponly=True,
        samesite="strict",
    )


def remove_cookie(request: Request, response: Response) -> None:
    """Remove the cookie of an ended session."""
    response.delete_cookie(_name(request), secure=not _is_local(request), httponly=True, samesite="strict")


def _is_from_console(request: Request) -> bool:
    return request.headers.get(HEADER) == "1" and request.headers.get("sec-fetch-site") == "same-origin"


def _name(request: Request) -> str:
    return LOCAL_NAME if _is_local(request) else SECURE_NAME


def _is_local(request: Request) -> bool:
    return request.url.scheme == "http" and request.url.hostname in _LOCAL_HOSTS
