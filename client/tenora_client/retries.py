"""Retry policy: which requests may be repeated, and after which pause. Pure functions of a response or a failure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import httpx

from tenora_client.answers import retry_after_s

_FIRST_PAUSE_S = 0.5
#: A longer Retry-After is a decision for the caller, such as a daily budget.
_LONGEST_PAUSE_S = 30.0
_REPEATABLE = frozenset({"GET", "HEAD"})
#: The server did nothing: the request was refused before it ran.
_NOT_DONE = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
#: A proxy in front may have lost the answer of a request that ran.
_UNKNOWN = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT})
#: The request never left this machine.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True)
class Retries:
    """Retry policy of a client.

    Attributes:
        most: maximum number of repeats of one request.
    """

    most: int = 0

    def after_failure(
        self, attempt: int, method: str, headers: Mapping[str, str], error: httpx.TransportError
    ) -> float | None:
        """Return the pause in seconds before the next attempt, or None if there is to be none."""
        if attempt >= self.most:
            return None
        safe = isinstance(error, _NOT_SENT) or (
            isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError)) and _repeatable(method, headers)
        )
        return _backoff_s(attempt) if safe else None

    def after_response(
        self, attempt: int, method: str, headers: Mapping[str, str], response: httpx.Response
    ) -> float | None:
        """Return the pause in seconds before the next attempt, or None if the response is final."""
        status = response.status_code
        retryable = status in _NOT_DONE or (status in _UNKNOWN and _repeatable(method, headers))
        if attempt >= self.most or not retryable or response.headers.get("x-should-retry") == "false":
            return None
        pause_s = retry_after_s(response.headers)
        if pause_s is None:
            return _backoff_s(attempt)
        return pause_s if pause_s <= _LONGEST_PAUSE_S else None


def _repeatable(method: str, headers: Mapping[str, str]) -> bool:
    return method in _REPEATABLE or "idempotency-key" in headers


def _backoff_s(attempt: int) -> float:
    # Jitter: keep clients from retrying in step.
    return _FIRST_PAUSE_S * (1 << attempt) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
