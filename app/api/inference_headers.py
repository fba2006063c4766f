"""Request and response headers of the inference routes."""

import re
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request

from app.domain.errors import InvalidRequest
from app.domain.limits.limiter import RateLimitStatus
from app.domain.load_phases import LoadPhases

TIMEOUT = "x-request-timeout"
MAX_TIMEOUT_S = 3600.0

#: OpenAPI parameter of the deadline header.
DEADLINE: dict[str, Any] = {
    "name": TIMEOUT,
    "in": "header",
    "required": False,
    "description": "Maximum wait for the first token in seconds, as a decimal number. A request that would wait longer "
    "is refused with 503 and Retry-After.",
    "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_S},
}

IGNORED = "x-tenora-ignored"
_IGNORED_NAMES = 32
_IGNORED_CHARS = 1024
# Field names come from the client: a response header repeats only names of these characters.
_FIELD_NAME = re.compile(r"[A-Za-z0-9_$\-\[\].]{1,100}", re.ASCII)

# Any number of decimals: a client that subtracts timestamps sends seventeen digits.
_SECONDS = re.compile(r"[0-9]{1,4}(\.[0-9]*)?|\.[0-9]+", re.ASCII)


def deadline_of(request: Request) -> float | None:
    """Parse the request's deadline: seconds until the first token, or None for no deadline.

    The read timeout that OpenAI's client sends (``x-stainless-read-timeout``) is ignored. It says when the library
    gives up on a silent connection. A request refused because of it could still have been answered.

    Raises:
        InvalidRequest: the header is not a number above 0 and up to an hour.
    """
    text = request.headers.get(TIMEOUT)
    if text is None:
        return None
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise InvalidRequest(
            f"{TIMEOUT} is {text[:40]!r}, but must be a number of seconds above 0 and up to {MAX_TIMEOUT_S:g}.",
            param=TIMEOUT,
        )
    return seconds


def limit_headers(rate_limits: RateLimitStatus | None) -> dict[str, str]:
    """Format the caller's rate limits per minute as the headers that OpenAI's clients read."""
    rates = {"requests": rate_limits.requests, "tokens": rate_limits.tokens} if rate_limits else {}
    headers: dict[str, str] = {}
    for unit, rate in rates.items():
        if rate:
            headers |= {
                f"x-ratelimit-limit-{unit}": str(rate.limit),
                f"x-ratelimit-remaining-{unit}": str(rate.remaining),
                f"x-ratelimit-reset-{unit}": f"{rate.reset_s:.3f}s",
            }
    return headers


def ignored_headers(names: Iterable[str]) -> dict[str, str]:
    """List ignored request fields in a header: each name once, at most 32 names, ``...`` for the rest."""
    shown: dict[str, None] = {}
    size = 0
    for name in names:
        word = name if _FIELD_NAME.fullmatch(name) else "?"
        if word in shown:
            continue
        size += len(word) + len(", ")
        if len(shown) == _IGNORED_NAMES or size > _IGNORED_CHARS:
            shown["..."] = None
            break
        shown[word] = None
    return {IGNORED: ", ".join(shown)} if shown else {}


def load_headers(load: LoadPhases | None) -> dict[str, str]:
    """Format a cold request's load time, total and by phase, in milliseconds as in W3C Server-Timing."""
    if load is None:
        return {}
    phases = {"fetch": load.fetch_s, "stage": load.stage_s, "wait": load.wait_s, "copy": load.copy_s}
    timing = ", ".join(f"{name};dur={1000 * seconds:.1f}" for name, seconds in phases.items())
    return {"x-tenora-load-ms": f"{1000 * load.total_s:.0f}", "server-timing": timing}
