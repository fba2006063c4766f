"""Hugging Face Hub source: files of one commit, over the ``resolve`` endpoint only.

huggingface_hub's own download follows every redirect, has no size limit, and keeps a cache. Here the bytes come from a
repository that a stranger named. So this client

- fetches two file names only
- enforces a size limit while it streams
- follows a few redirects, each to the same origin or to a public address over https
- sends the token to the endpoint's origin only

https://huggingface.co/docs/huggingface_hub/package_reference/file_download
"""

import logging
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import quote

import httpx

from app.domain.errors import InvalidRequest, SourceUnavailable, TooLarge
from app.importing.addresses import NotPublic, public_addresses
from app.importing.source import Absent, HubSource, absent
from app.settings import ImportSettings
from app.support.spool import SpooledFile, SpoolWriter

logger = logging.getLogger(__name__)

_TIMEOUT = httpx.Timeout(connect=10, read=60, write=30, pool=10)
_MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ABSENT = frozenset({401, 403, 404, 410})
_HUB, _STRANGER = "The Hub", "The host that the Hub redirected to"
_ASK_THE_PLATFORM = "Ask the platform team to check TENORA_IMPORTS__HF_ENDPOINT and the connection to it."
_SHA256 = re.compile(r'(?:W/)?"?([0-9a-f]{64})"?', re.ASCII)


class Hub:
    """Client for the hub of the settings. Connects on first use.

    Args:
        transport: transport factory for tests; default: the network.
    """

    def __init__(self, settings: ImportSettings, *, transport: Callable[[], httpx.AsyncBaseTransport] | None = None):
        self._endpoint = httpx.URL(settings.hf_endpoint.rstrip("/"))
        self._token = settings.hf_token.get_secret_value() if settings.hf_token else None
        self._transport = transport

    async def fetch(self, source: HubSource, name: str, writer: SpoolWriter, cap: int) -> SpooledFile:
        """Download a file of the commit. After an error the caller abandons the writer.

        Args:
            cap: most bytes of the file.

        Raises:
            InvalidRequest: there is no such file, or this server's token may not read it.
            TooLarge: the file has more bytes than ``cap``.
            SourceUnavailable: the hub did not answer, or violated its protocol.
            DiskFull, StoreUnavailable
        """
        async with self._client() as client, self._translated():
            digest, response = await self._resolve(client, self._url(source, name), source, name)
            try:
                async for chunk in _chunks(response, name, cap):
                    writer.add(memoryview(chunk))
                    if writer.due:
                        await writer.flush()
            finally:
                await response.aclose()
        file = await writer.finish()
        if digest not in (None, file.digest):
            raise SourceUnavailable(f"The Hub sent other bytes for {name} than it announced. Try again.")
        return file

    async def has(self, source: HubSource, name: str) -> bool:
        """Return whether the commit has a file that this server may read. The bytes are not read.

        Raises:
            SourceUnavailable
        """
        async with self._client() as client, self._translated():
            try:
                _, response = await self._resolve(client, self._url(source, name), source, name)
            except Absent:
                return False
            await response.aclose()
        return True

    def _url(self, source: HubSource, name: str) -> httpx.URL:
        path = "/".join(quote(part, safe="") for part in (*source.folder.split("/"), name) if part)
        return httpx.URL(f"{self._endpoint}/{source.repo}/resolve/{source.commit}/{path}")

    def _client(self) -> httpx.AsyncClient:
        # Ignore the environment's proxies, so that connections go to the address that was checked.
        context = httpx.create_ssl_context(trust_env=True)
        transport = self._transport() if self._transport else httpx.AsyncHTTPTransport(verify=context)
        return httpx.AsyncClient(transport=transport, timeout=_TIMEOUT, trust_env=False, follow_redirects=False)

    async def _resolve(
        self, client: httpx.AsyncClient, url: httpx.URL, source: HubSource, name: str
    ) -> tuple[str | None, httpx.Response]:
        """Follow redirects to the file.

        Returns:
            The SHA-256 that the hub announces, if any, and the response with the file's bytes.
        """
        digest = None
        for _ in range(_MAX_REDIRECTS + 1):
            is_hub = _origin(url) == _origin(self._endpoint)
            response = await (self._ask_hub(client, url) if is_hub else _ask_stranger(client, url))
            async with AsyncExitStack() as opened:
                opened.push_async_callback(response.aclose)
                if is_hub:
                    digest = _announced(response, source) or digest
                if response.status_code == httpx.codes.OK:
                    opened.pop_all()
                    return digest, response
                url = _target(url, response, source, name)
        raise SourceUnavailable("The Hub redirected too often. Try again later.")

    @asynccontextmanager
    async def _translated(self) -> AsyncGenerator[None]:
        """Translate the errors of httpx.

        Raises:
            SourceUnavailable: with a message for each kind of failure.
        """
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, NotPublic) as error:
            logger.warning("The Hub could not be read: %s: %s", type(error).__name__, error)
            raise _explained(error, _HUB if self._is_about_hub(error) else _STRANGER) from None

    def _is_about_hub(self, error: Exception) -> bool:
        try:
            return not isinstance(error, httpx.RequestError) or _origin(error.request.url) == _origin(self._endpoint)
        except RuntimeError:  # the error has no request
            return True

    async def _ask_hub(self, client: httpx.AsyncClient, url: httpx.URL) -> httpx.Response:
        headers = {"accept-encoding": "identity"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        return await client.send(client.build_request("GET", url, headers=headers), stream=True)


async def _ask_stranger(client: httpx.AsyncClient, url: httpx.URL) -> httpx.Response:
    """Send the request to a redirect's host, at an address that was checked to be public."""
    if url.scheme != "https":
        raise SourceUnavailable(f"The Hub redirected to an address that is not https. {_ASK_THE_PLATFORM}")
    port = url.port or 443
    error: httpx.ConnectError | None = None
    for address in await public_addresses(url.host, port):
        # The connection goes to the address, but the certificate must be that of the host.
        request = client.build_request(
            "GET",
            url.copy_with(host=address),
            headers={"host": url.netloc.decode("ascii"), "accept-encoding": "identity"},
            extensions={"sni_hostname": url.host},
        )
        try:
            return await client.send(request, stream=True)
        except httpx.ConnectError as failure:
            error = failure
    raise error or NotPublic("The host has no address.")


async def _chunks(response: httpx.Response, name: str, cap: int) -> AsyncGenerator[bytes]:
    too_large = TooLarge(f"{name} has more than {cap} bytes, which is the limit.", param=name)
    length = response.headers.get("content-length", "")
    # Python refuses to convert thousands of digits. The count below handles longer numbers.
    if length.isdecimal() and len(length) < 20 and int(length) > cap:
        raise too_large
    if response.headers.get("content-encoding", "identity") != "identity":
        raise SourceUnavailable(f"The Hub sent compressed bytes, which were not requested. {_ASK_THE_PLATFORM}")
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > cap:
            raise too_large
        yield chunk


def _announced(response: httpx.Response, source: HubSource) -> str | None:
    """Return the SHA-256 that the hub announces for a large file, or None.

    Raises:
        SourceUnavailable: the response is about another commit.
    """
    if response.headers.get("x-repo-commit", source.commit) != source.commit:
        raise SourceUnavailable(f"The Hub answered with another commit than the requested one. {_ASK_THE_PLATFORM}")
    match = _SHA256.fullmatch(response.headers.get("x-linked-etag", ""))
    return match[1] if match else None


def _target(url: httpx.URL, response: httpx.Response, source: HubSource, name: str) -> httpx.URL:
    """Return the target of a redirect.

    Raises:
        InvalidRequest, SourceUnavailable: the response is not a redirect, or its target is invalid.
    """
    if response.status_code not in _REDIRECTS:
        raise _refusal(response.status_code, source, name)
    try:
        target = url.join(response.headers.get("location", ""))
    except httpx.InvalidURL:
        target = httpx.URL("")
    if target.scheme not in {"http", "https"} or not target.host or target.userinfo:
        raise SourceUnavailable(f"The Hub redirected to an invalid address. {_ASK_THE_PLATFORM}")
    return target


def _refusal(status: int, source: HubSource, name: str) -> InvalidRequest | SourceUnavailable:
    if status in _ABSENT:
        return absent(source, name, f"the Hub answered {status}")
    return SourceUnavailable(f"The Hub answered {status}. Try again later.", retry_after=30)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _explained(error: Exception, host: str) -> SourceUnavailable:
    """Describe a failure without the error's own text, which may contain an address of this network."""
    causes = list(_causes(error))
    if isinstance(error, NotPublic):
        # An unknown name gets the same message, so that it does not reveal which names exist in this network.
        return SourceUnavailable(
            "The Hub redirected to a host that is not public. Imports are read from public hosts only."
        )
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return SourceUnavailable(
            f"{host} has a TLS certificate that this server does not trust. "
            "Ask the platform team to add its issuer to the server's certificates (SSL_CERT_FILE)."
        )
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return SourceUnavailable(f"{host} could not be reached over TLS. {_ASK_THE_PLATFORM}")
    if isinstance(error, httpx.TimeoutException):
        return SourceUnavailable(f"{host} did not answer in time. Try again later.", retry_after=30)
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return SourceUnavailable(f"{host} has a name that cannot be resolved. {_ASK_THE_PLATFORM}")
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return SourceUnavailable(f"{host} refused the connection. Try again later. {_ASK_THE_PLATFORM}", retry_after=30)
    if isinstance(error, httpx.ConnectError):
        return SourceUnavailable(f"{host} cannot be reached. Try again later. {_ASK_THE_PLATFORM}", retry_after=30)
    if isinstance(error, httpx.TransportError):
        return SourceUnavailable(f"{host} broke off its answer. Try again.", retry_after=5)
    return SourceUnavailable(f"{host} did not follow the Hub's API. {_ASK_THE_PLATFORM}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Iterate over an error and all errors that led to it."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                yield from _causes(inner)
        error = error.__cause__ or error.__context__
