# Generated from _async/connection.py by `make client-code`. Change that file instead.
"""HTTP connection to one server with one key."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any

import httpx

from tenora_client.answers import HEARTBEAT, FeedEvent, FeedParser, checked_event, page_after, page_of, result
from tenora_client.proxies import is_local
from tenora_client.retries import Retries

# A read waits for the engine's first token, or for the validation of an upload.
TIMEOUT = httpx.Timeout(connect=10, read=600, write=60, pool=10)

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_PAGE = 200
#: OpenAI allows no more on a page of batches.
_SHORT_PAGE = 100

#: Items of a listing.
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Download:
    """File download in progress."""

    headers: Mapping[str, str]
    chunks: Iterator[bytes]


class Connection:
    """HTTP connection to one server with one key.

    Args:
        retries: maximum number of repeats of a request that the server or the network did not take.
        timeout_s: seconds without a byte of the answer after which a request fails.

    Attributes:
        trusts_proxies: True if the proxies of the environment are used.

    Raises (every method):
        Refused: the server answered with an error.
        httpx.TransportError: the server did not answer.
    """

    def __init__(
        self, url: str, key: str, *, retries: int = 0, timeout_s: float | None = None, user_agent: str = "tenora-cli"
    ) -> None:
        headers = {"authorization": f"Bearer {key}", "user-agent": user_agent}
        self.trusts_proxies = not is_local(url)
        timeout = TIMEOUT if timeout_s is None else httpx.Timeout(connect=10, read=timeout_s, write=60, pool=10)
        self._retries = Retries(retries)
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=self.trusts_proxies)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the server."""
        self._http.close()

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = _NOTHING,
        query: Mapping[str, Any] = _NOTHING,
    ) -> httpx.Response:
        """Send a request, repeat it as the retry policy allows, and return the response. It may be an error."""
        attempt = 0
        while True:
            try:
                response = self._http.request(method, path, json=body, headers=headers, params=query or None)
            except httpx.TransportError as error:
                pause_s = self._retries.after_failure(attempt, method, headers, error)
                if pause_s is None:
                    raise
            else:
                pause_s = self._retries.after_response(attempt, method, headers, response)
                if pause_s is None:
                    return response
            attempt += 1
            time.sleep(pause_s)

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = _NOTHING,
        query: Mapping[str, Any] = _NOTHING,
    ) -> Any:
        """Send a request and return the JSON of the answer, or None for an empty one."""
        return result(self.send(method, path, body, headers, query))

    def pages(self, path: str, filters: Mapping[str, str | Sequence[str]] = _NOTHING) -> Iterator[Rows]:
        """Fetch the pages of a listing, one request for each page that the caller takes.

        Args:
            filters: query parameters that filter the listing. A sequence is sent as a repeated parameter.
        """
        cursor: str | None = None
        while True:
            query: dict[str, Any] = {**filters, "limit": _PAGE, **({"cursor": cursor} if cursor else {})}
            items, cursor = page_of(self.send("GET", path, query=query))
            yield items
            if cursor is None:
                return

    def pages_after(self, path: str, filters: Mapping[str, str | Sequence[str]] = _NOTHING) -> Iterator[Rows]:
        """Fetch the pages of a listing in OpenAI's form, whose cursor is the id of the last item."""
        query: dict[str, Any] = {**filters, "limit": _SHORT_PAGE}
        while True:
            answer = result(self.send("GET", path, query=query))
            items, more = page_after(answer)
            yield items
            if not (more and items):
                return
            query["after"] = items[-1]["id"]

    def list(self, path: str, filters: Mapping[str, str | Sequence[str]] = _NOTHING) -> Rows:
        """Fetch all pages of a listing, as :meth:`pages` does."""
        return [item for page in self.pages(path, filters) for item in page]

    def is_platform(self) -> bool:
        """Return whether the server accepts the key as a platform key."""
        response = self.send("GET", "/admin/tenants", query={"limit": 1})
        if response.status_code == httpx.codes.FORBIDDEN:
            return False
        result(response)
        return True

    def feed(self, path: str, *, after: int | None, silence_s: float) -> Iterator[FeedEvent]:
        """Follow a feed until it ends. An event without a type is a heartbeat.

        Args:
            after: id of the last event seen, None to start with the next event.
            silence_s: seconds without an event or heartbeat after which the connection counts as lost.
        """
        headers = {} if after is None else {"last-event-id": str(after)}
        timeout = httpx.Timeout(connect=10, read=silence_s, write=60, pool=10)
        parser = FeedParser()
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            _check(response)
            yield HEARTBEAT
            for line in response.iter_lines():
                event = parser.push(line)
                if event is not None:
                    yield event

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the JSON of each server-sent event until ``[DONE]``. An error event raises Refused."""
        with self._http.stream("POST", path, json=body) as response:
            _check(response)
            for line in response.iter_lines():
                event = checked_event(line, response.headers)
                if event is not None:
                    yield event

    @contextmanager
    def download(self, path: str) -> Iterator[Download]:
        """Download a file in chunks."""
        with self._http.stream("GET", path) as response:
            _check(response)
            yield Download(response.headers, response.iter_bytes())


def _check(response: httpx.Response) -> None:
    """Raise the error of an error response, whose body a stream has not read yet."""
    if response.is_error:
        response.read()
        result(response)
