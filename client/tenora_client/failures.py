"""Turn failures of the connection, and of releases that do not fit, into errors of the tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import httpx

from tenora_client import __version__
from tenora_client.errors import ConfigurationError, ConnectionFailed, ForeignAnswer, NotFound, Refused, VersionMismatch
from tenora_client.proxies import proxy_failure


@contextmanager
def reported(url: str) -> Iterator[None]:
    """Raise ConnectionFailed, with the next step, in place of httpx's errors."""
    try:
        yield
    except (httpx.TransportError, httpx.StreamError) as error:
        raise ConnectionFailed(_sentence(url, error)) from error


def _sentence(url: str, error: httpx.TransportError | httpx.StreamError) -> str:
    if isinstance(error, httpx.TransportError) and (sentence := proxy_failure(url, error)):
        return sentence
    if isinstance(error, httpx.ConnectTimeout):
        return f"{url} did not accept a connection in time. Check the address and the network."
    if isinstance(error, httpx.TimeoutException):
        return f"{url} did not answer in time. Check the server, then try again."
    if isinstance(error, httpx.ConnectError):
        return (
            f"Cannot reach {url}: {error}. Check that the server runs there, or give another address with `url` or "
            "TENORA_URL."
        )
    return f"Lost the connection to {url}: {str(error) or type(error).__name__}. The request may have taken effect."


@contextmanager
def usable_environment() -> Iterator[None]:
    """Raise ConfigurationError for proxies and certificates of the environment that httpx cannot use."""
    try:
        yield
    except (ValueError, httpx.InvalidURL, ImportError) as error:
        raise ConfigurationError(
            f"The proxy settings of the environment cannot be used: {error}. Check HTTP_PROXY, HTTPS_PROXY and "
            "ALL_PROXY."
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"The certificates of the environment cannot be read: {error}. Check SSL_CERT_FILE and SSL_CERT_DIR."
        ) from error


def lacks_route(error: Refused) -> bool:
    """Return whether the server has no such route. Its 404 for an object names the object as ``param``."""
    if isinstance(error, ForeignAnswer):
        return False
    if error.status == HTTPStatus.METHOD_NOT_ALLOWED:
        return True
    return isinstance(error, NotFound) and error.param is None


def mismatch(url: str, problem: str, server_version: str | None) -> VersionMismatch:
    """Build the error with the releases of both sides and the next step."""
    server = f"Tenora {server_version}" if server_version else "a release of Tenora that does not tell its version"
    older = server_version is None or _numbers(server_version) < _numbers(__version__)
    step = (
        "Upgrade the server, or install the client of its release."
        if older
        else "Upgrade the client: pip install --upgrade tenora-client."
    )
    message = f"{url} runs {server}, and this is tenora-client {__version__}: {problem}. {step}"
    return VersionMismatch(message, __version__, server_version)


def _numbers(version: str) -> list[int]:
    """Return the leading numbers of a version, by which releases are compared."""
    numbers = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return numbers
