"""Session of a client: one connection, with typed answers and errors of the client's tree."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from tenora_client import __version__
from tenora_client._async.connection import AsyncConnection, AsyncDownload
from tenora_client.answers import FeedEvent, read, result
from tenora_client.blocking import Work, async_run
from tenora_client.closing import async_closing
from tenora_client.configuration import Access
from tenora_client.errors import Refused, VersionMismatch
from tenora_client.failures import lacks_route, mismatch, reported, usable_environment
from tenora_client.progress import OnProgress

T = TypeVar("T")

#: Routes under these accept the header Idempotency-Key, so a POST can be repeated.
_IDEMPOTENT = ("/admin/", "/v1/adapters/", "/v1/batches")


class AsyncSession:
    """Connection to one server, with typed answers and errors of the client's tree.

    Raises (every method):
        Refused: the server answered with an error.
        ConnectionFailed: the server did not answer.
        VersionMismatch: the server lacks the route, or its answer has another form.
    """

    def __init__(self, access: Access, *, retries: int, timeout_s: float | None) -> None:
        self.access = access
        self._platform: bool | None = None
        agent = f"tenora-client/{__version__}"
        with usable_environment():
            self._connection = AsyncConnection(
                access.url, access.key, retries=retries, timeout_s=timeout_s, user_agent=agent
            )

    async def close(self) -> None:
        """Close the connections to the server."""
        await self._connection.close()

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, Mapping[str, str]]:
        """Send a request, and return the JSON of the answer and its headers."""
        sent = dict(headers or {})
        if method == "POST" and path.startswith(_IDEMPOTENT):
            sent.setdefault("idempotency-key", uuid.uuid4().hex)
        with reported(self.access.url):
            try:
                response = await self._connection.send(method, path, body, sent, query or {})
                return result(response), response.headers
            except Refused as error:
                if lacks_route(error):
                    raise await self._mismatch(f"the server has no route {method} {path}") from error
                raise

    async def get(self, kind: type[T], path: str, query: Mapping[str, Any] | None = None) -> T:
        """Fetch an object."""
        return await self.change(kind, "GET", path, query=query)

    async def change(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send a request, and return its answer as this type."""
        answer, _ = await self.send(method, path, body, query=query, headers=headers)
        return await self.typed(kind, answer)

    async def typed(self, kind: type[T], answer: Any) -> T:
        """Convert the JSON of an answer to its type."""
        try:
            return read(kind, answer)
        except msgspec.ValidationError as error:
            raise await self._mismatch(f"an answer cannot be read ({error})") from error

    async def items(
        self,
        kind: type[T],
        path: str,
        filters: Mapping[str, str | Sequence[str] | None] | None = None,
        *,
        by_id: bool = False,
    ) -> AsyncIterator[T]:
        """Yield the items of a listing. A page is fetched once its first item is taken.

        Args:
            by_id: the listing has OpenAI's form.
        """
        given = {name: value for name, value in (filters or {}).items() if value}
        fetch = self._connection.pages_after if by_id else self._connection.pages
        with reported(self.access.url):
            try:
                async for page in fetch(path, given):
                    for item in page:
                        yield await self.typed(kind, item)
            except Refused as error:
                if lacks_route(error):
                    raise await self._mismatch(f"the server has no route GET {path}") from error
                raise

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of an inference stream."""
        with reported(self.access.url):
            async with async_closing(self._connection.stream(path, body)) as events:
                async for event in events:
                    yield event

    async def feed(self, path: str, after: int | None, silence_s: float) -> AsyncIterator[FeedEvent]:
        """Yield the events and heartbeats of a feed, until the server or the network ends it."""
        with reported(self.access.url):
            async with async_closing(self._connection.feed(path, after=after, silence_s=silence_s)) as events:
                async for event in events:
                    yield event

    @asynccontextmanager
    async def download(self, path: str) -> AsyncIterator[AsyncDownload]:
        """Download a file in chunks."""
        with reported(self.access.url):
            async with self._connection.download(path) as download:
                yield download

    async def run(self, work: Work[Any], on_progress: OnProgress | None) -> Any:
        """Run blocking work that uses a separate connection."""
        with reported(self.access.url):
            return await async_run(work, on_progress)

    async def is_platform(self) -> bool:
        """Return whether the key is a platform key. The server is asked once."""
        if self._platform is None:
            with reported(self.access.url):
                self._platform = await self._connection.is_platform()
        return self._platform

    async def server_version(self) -> str | None:
        """Return the release of the server, or None if it does not tell."""
        with reported(self.access.url):
            try:
                server = await self._connection.call("GET", "/v1/server")
            except Refused:
                return None
        version = server.get("version") if isinstance(server, dict) else None
        return version if isinstance(version, str) else None

    async def _mismatch(self, problem: str) -> VersionMismatch:
        return mismatch(self.access.url, problem, await self.server_version())
