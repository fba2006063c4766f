"""HTTP client of Tenora's API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx

# A read waits for the engine's first token, or for the validation of an upload.
_TIMEOUT = httpx.Timeout(connect=10, read=600, write=60, pool=10)

_PAGE = 200


class Refused(Exception):
    """Error response of the server.

    Attributes:
        body: JSON body as sent.
        status: HTTP status.
        reasons: reasons of a refused upload, empty for other errors.
        param: field or object that the error is about, None if the server names none.
    """

    def __init__(self, status: int, body: dict[str, Any], request_id: str | None) -> None:
        self.body, self.status = body, status
        error = body.get("error")
        details = error if isinstance(error, dict) else {"message": error}
        param = details.get("param")
        self.param: str | None = param if isinstance(param, str) else None
        reasons = details.get("reasons")
        self.reasons = [r for r in reasons if isinstance(r, dict)] if isinstance(reasons, list) else []
        super().__init__(_with_status(details.get("message"), status, request_id))


@dataclass(frozen=True)
class FeedEvent:
    """Server-sent event.

    Attributes:
        id: position to resume after, None if the event has none.
        type: type of the event, empty for a heartbeat.
        data: payload.
    """

    id: int | None
    type: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Download:
    """File download in progress."""

    headers: Mapping[str, str]
    chunks: Iterator[bytes]


class Api:
    """Client of one server with one key.

    Attributes:
        trusts_proxies: True if the proxies of the environment are used.

    Raises (every method):
        Refused: the server answered with an error.
        httpx.TransportError: the server did not answer.
    """

    def __init__(self, url: str, key: str) -> None:
        headers = {"authorization": f"Bearer {key}", "user-agent": "tenora-cli"}
        # Proxies of the environment are for other machines.
        self.trusts_proxies = httpx.URL(url).host not in {"127.0.0.1", "::1", "localhost"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT, trust_env=self.trusts_proxies)

    def __enter__(self) -> Api:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Any:
        """Send a request and return the JSON of the answer, or None for an empty one."""
        return _result(self._http.request(method, path, json=body, headers=headers))

    def list(
        self, path: str, filters: Mapping[str, str | Sequence[str]] = MappingProxyType({})
    ) -> list[dict[str, Any]]:
        """Fetch all pages of a listing.

        Args:
            filters: query parameters that filter the listing. A sequence is sent as a repeated parameter.
        """
        rows: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            query: dict[str, Any] = {**filters, "limit": _PAGE} | ({"cursor": cursor} if cursor else {})
            response = self._http.get(path, params=query)
            page = _result(response)
            try:
                rows += page["data"]
                cursor = page["next_cursor"]
            except (KeyError, TypeError):
                raise _foreign_answer(response.status_code, response.text) from None
            if cursor is None:
                return rows

    def upload(self, path: str, files: Mapping[str, BinaryIO]) -> Any:
        """Send files as multipart. Each file is read in chunks while it is sent."""
        parts = {name: (name, file, "application/octet-stream") for name, file in files.items()}
        return _result(self._http.post(path, files=parts))

    def put(self, path: str, content: Iterable[bytes], headers: Mapping[str, str]) -> None:
        """Send a body. The headers give its length."""
        _result(self._http.put(path, content=content, headers=dict(headers)))

    def is_platform(self) -> bool:
        """Return whether the server accepts the key as a platform key."""
        response = self._http.get("/admin/tenants", params={"limit": 1})
        if response.status_code == httpx.codes.FORBIDDEN:
            return False
        _result(response)
        return True

    def feed(self, path: str, *, after: int | None, silence_s: float) -> Iterator[FeedEvent]:
        """Follow a feed until it ends. An event without a type is a heartbeat.

        Args:
            after: id of the last event seen, None to start with the next event.
            silence_s: seconds without an event or heartbeat after which the connection counts as lost.
        """
        headers = {} if after is None else {"last-event-id": str(after)}
        timeout = httpx.Timeout(connect=10, read=silence_s, write=60, pool=10)
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.is_error:
                response.read()
                _result(response)
            yield FeedEvent(None, "", {})
            yield from _feed_events(response.iter_lines())

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the JSON of each server-sent event until ``[DONE]``. An error event raises Refused."""
        with self._http.stream("POST", path, json=body) as response:
            if response.is_error:
                response.read()
                _result(response)
            for line in response.iter_lines():
                event = _event(line)
                if event is None:
                    continue
                if "error" in event:
                    raise Refused(response.status_code, event, response.headers.get("x-request-id"))
                yield event

    @contextmanager
    def download(self, path: str) -> Iterator[Download]:
        """Download a file in chunks."""
        with self._http.stream("GET", path) as response:
            if response.is_error:
                response.read()
                _result(response)
            yield Download(response.headers, response.iter_bytes())


def _with_status(message: object, status: int, request_id: str | None) -> str:
    """Put the status and the request id before the full stop of the server's message."""
    sentence = str(message or "The server gave no reason.")
    suffix = f" ({status}, request {request_id})" if request_id else f" ({status})"
    return f"{sentence[:-1]}{suffix}." if sentence.endswith(".") else f"{sentence}{suffix}"


def _feed_events(lines: Iterator[str]) -> Iterator[FeedEvent]:
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            yield FeedEvent(None, "", {})
        elif line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        else:
            if "event" in fields:
                identity = fields.get("id", "")
                data = _event(f"data: {fields.get('data', '')}") or {}
                yield FeedEvent(int(identity) if identity.isdecimal() else None, fields["event"], data)
            fields = {}


def path_of(*segments: str) -> str:
    """Build a path from quoted segments: ``path_of("admin", "tenants", name)``."""
    return "/" + "/".join(quote(segment, safe="@:") for segment in segments)


def adapters_path(tenant: str | None, *segments: str) -> str:
    """Build a path below a tenant's adapters. None means the tenant of the key."""
    root = ("v1", "adapters") if tenant is None else ("admin", "tenants", tenant, "adapters")
    return path_of(*root, *segments)


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("data:") or (data := line[5:].strip()) == "[DONE]":
        return None
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise _foreign_answer(httpx.codes.OK, line)
    return event


def _result(response: httpx.Response) -> Any:
    if response.status_code == httpx.codes.NO_CONTENT:
        return None
    try:
        body = response.json()
    except ValueError:
        raise _foreign_answer(response.status_code, response.text) from None
    if response.is_success:
        return body
    if not isinstance(body, dict) or "error" not in body:
        raise _foreign_answer(response.status_code, response.text)
    raise Refused(response.status_code, body, response.headers.get("x-request-id"))


def _foreign_answer(status: int, text: str) -> Refused:
    message = f"The answer is not from a Tenora server: {text[:200]!r}. Check the server's URL."
    return Refused(status, {"error": {"message": message}}, None)
