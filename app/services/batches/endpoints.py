"""Endpoints of batches, and the check of a line's body as the endpoint's route does it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from app.domain.errors import InvalidRequest, UnsupportedField
from app.engine.port import Endpoint
from app.services.bodies.parsing import shown
from app.services.bodies.responses import responses_request
from app.services.serving.checked_bodies import BodyChecks, CheckedBody

#: Endpoints by path, with the checks of their routes.
ENDPOINTS: Mapping[str, Callable[[BodyChecks, dict[str, Any]], CheckedBody]] = MappingProxyType(
    {
        "/v1/chat/completions": lambda checks, body: checks.openai(Endpoint.CHAT, body),
        "/v1/completions": lambda checks, body: checks.openai(Endpoint.COMPLETIONS, body),
        "/v1/responses": lambda checks, body: checks.translated(body, responses_request),
        "/generate": lambda checks, body: checks.lorax(body, stream=False),
    }
)


def checked_endpoint(endpoint: str) -> str:
    """Check the endpoint of a batch.

    Raises:
        InvalidRequest
    """
    if endpoint not in ENDPOINTS:
        allowed = ", ".join(ENDPOINTS)
        raise InvalidRequest(f"endpoint is {endpoint[:80]!r}; it must be one of {allowed}.", param="endpoint")
    return endpoint


def checked_body(endpoint: str, checks: BodyChecks, body: dict[str, Any]) -> CheckedBody:
    """Check the body of a line as the endpoint's route does; only streams are refused in addition.

    Raises:
        InvalidRequest, UnsupportedField
    """
    if body.get("stream"):
        raise UnsupportedField(
            f"stream is {shown(body['stream'])}. The answers of a batch are whole; leave it out.", param="stream"
        )
    return ENDPOINTS[endpoint](checks, body)
