"""A small client of Tenora's HTTP API."""

import json
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import quote

import httpx

# Reading waits for the engine's first token, or for the validation of an upload.
_TIMEOUT = httpx.Timeout(connect=10, read=600, write=60, pool=10)

_PAGE = 200


class Refused(Exception):
    """The server answered with an error.

    Attributes:
        body: its JSON body, as sent.
        reasons: why an upload was refused; empty for other errors.
    """

    def __init__(self, status: int, body: dict[str, Any], request_id: str | None) -> None:
        self.body = body
        error = body.get("error")
        details = error if isinstance(error, dict) else {"message": error}
        reasons = details.get("reasons")
        self.reasons = [r for r in reasons if isinstance(r, dict)] if isinstance(reasons, list) else []
        suffix = f", request {request_id}" if request_id else ""
        super().__init__(f"{details.get('message') or 'no reason given'} ({status}{suffix})")


class Api:
    """One connection to a server, with one key.

    Raises (every method):
        Refused: the server answered with an error.
        httpx.TransportError: it did not answer.
    """

    def __init__(self, url: str, key: str) -> None:
        headers = {"authorization": f"Bearer {key}", "user-agent": "tenora-cli"}
        # A proxy of the environment is for other machines.
        local = httpx.URL(url).host in {"127.0.0.1", "::1", "localhost"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT, trust_env=not local)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One request; returns the answer's JSON, or None if it has none."""
        return _result(self._http.request(method, path, json=body))

    def list(self, path: str) -> list[dict[str, Any]]:
        """All pages of a listing."""
        rows: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            query: dict[str, str | int] = {"limit": _PAGE} | ({"cursor": cursor} if cursor else {})
            response = self._http.get(path, params=query)
            page = _result(response)
            try:
                rows += page["data"]
                cursor = page["next_cursor"]
            except (KeyError, TypeError):
                raise _stranger(response.status_code, response.text) from None
            if cursor is None:
                return rows

    def upload(self, path: str, files: Mapping[str, BinaryIO]) -> Any:
        """Send files as multipart, each read in chunks as it is sent."""
        parts = {name: (name, file, "application/octet-stream") for name, file in files.items()}
        return _result(self._http.post(path, files=parts))

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The JSON of each server-sent event, until ``[DONE]``; an error event raises Refused."""
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


def path_of(*segments: str) -> str:
    """A path made of these segments, each quoted: ``path_of("admin", "tenants", name)``."""
    return "/" + "/".join(quote(segment, safe="@:") for segment in segments)


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("data:") or (data := line[5:].strip()) == "[DONE]":
        return None
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise _stranger(httpx.codes.OK, line)
    return event


def _result(response: httpx.Response) -> Any:
    if response.status_code == httpx.codes.NO_CONTENT:
        return None
    try:
        body = response.json()
    except ValueError:
        raise _stranger(response.status_code, response.text) from None
    if response.is_success:
        return body
    if not isinstance(body, dict) or "error" not in body:
        raise _stranger(response.status_code, response.text)
    raise Refused(response.status_code, body, response.headers.get("x-request-id"))


def _stranger(status: int, text: str) -> Refused:
    return Refused(status, {"error": {"message": f"this is no answer of a Tenora server: {text[:200]!r}"}}, None)
