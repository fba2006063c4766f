"""Connect a command to its server, and end the command with one sentence when a call fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn, Optional

import httpx
import typer
from msgspec import ValidationError

from tenora_client.cli.access import Access, admin_key, home, read_demo, resolve, tenant_key
from tenora_client.cli.common_options import record_source
from tenora_client.cli.invocation import current
from tenora_client.cli.next_steps import explanation, server_version
from tenora_client.cli.output import FAILED, UNREACHABLE, USAGE, emit_json_error, fail, show_reasons
from tenora_client.configuration import DEFAULT_URL
from tenora_client.errors import ConfigurationError
from tenora_client.failures import mismatch, usable_environment
from tenora_client.proxies import proxy_failure
from tenora_client.transport import Api, Refused

__all__ = ["Json", "Key", "Url", "connect", "connect_as_admin", "connect_as_tenant", "home", "read_demo", "tenant_key"]


def _remember(context: typer.Context, param: typer.CallbackParam, value: Optional[str]) -> Optional[str]:
    current().arguments = context.params
    record_source(context, param)
    return value


def _as_json(value: bool) -> bool:
    run = current()
    if value:
        if run.output not in (None, "json"):
            raise typer.BadParameter(f"--json and -o {run.output} exclude each other. Give one of them.")
        run.output = "json"
    return run.is_structured


Url = Annotated[
    Optional[str],
    typer.Option(
        "--url",
        envvar="TENORA_URL",
        callback=_remember,
        help=f"Address of the server (default: the profile's, else the demo's, else {DEFAULT_URL})",
    ),
]
Key = Annotated[
    Optional[str],
    typer.Option(
        "--key",
        envvar="TENORA_KEY",
        show_envvar=True,
        callback=_remember,
        help="API key (default: the profile's, else the demo's)",
    ),
]
Json = Annotated[bool, typer.Option("--json", callback=_as_json, help="Print the result as JSON, as -o json does")]


@contextmanager
def connect_as_admin(url: Optional[str], key: Optional[str], *, as_json: bool) -> Iterator[Api]:
    """Open an API client with the resolved key; of a demo, the platform key. End the command when a call fails."""
    with connect(resolve(url, key, admin_key), as_json=as_json) as api:
        yield api


@contextmanager
def connect_as_tenant(
    url: Optional[str], key: Optional[str], *, tenant: Optional[str], model: Optional[str], as_json: bool
) -> Iterator[Api]:
    """Open an API client with the resolved key; of a demo, a tenant's key. End the command when a call fails."""
    with connect(resolve(url, key, lambda demo: tenant_key(demo, tenant, model)), as_json=as_json) as api:
        yield api


@contextmanager
def connect(access: Access, *, as_json: bool) -> Iterator[Api]:
    """Open an API client. End the command with the server's error message, or with the cause of a failed connection."""
    key = access.required_key()
    try:
        with _opened(access.url, key) as api:
            try:
                yield api
            except Refused as refused:
                _report(api, access, refused, as_json=as_json)
            except ValidationError as error:
                fail(str(mismatch(access.url, f"an answer cannot be read ({error})", server_version(api))))
    except ConfigurationError as error:
        fail(str(error), USAGE)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        _report_address(access.url, error)
    except httpx.TransportError as error:
        fail(_failure(access.url, error), UNREACHABLE)


@contextmanager
def _opened(url: str, key: str) -> Iterator[Api]:
    httpx.URL(url)  # raises InvalidURL, before proxy settings can be at fault
    with usable_environment():
        api = Api(url, key)
    with api:
        yield api


def _report(api: Api, access: Access, refused: Refused, *, as_json: bool) -> NoReturn:
    if as_json and current().output != "name":
        emit_json_error(refused.body)
        raise typer.Exit(FAILED)
    if len(refused.reasons) > 1:
        show_reasons(refused.reasons)
    fail(explanation(api, access, refused), FAILED)


def _report_address(url: str, error: Exception) -> NoReturn:
    if "://" not in url:
        fail(f"The address {url} has no scheme. Write http://{url}.", USAGE)
    fail(f"{url} is not a valid address ({error}). Write one such as {DEFAULT_URL}.", USAGE)


def _failure(url: str, error: httpx.TransportError) -> str:
    """Return the sentence for a connection that failed."""
    if sentence := proxy_failure(url, error):
        return sentence
    if isinstance(error, httpx.TimeoutException):
        return f"{url} did not answer in time. Check the server, then try again."
    if isinstance(error, httpx.ConnectError):
        return (
            f"Cannot reach {url}: {error}. Check that the server runs there, or give another address with --url or "
            "TENORA_URL."
        )
    return f"Lost the connection to {url}: {str(error) or type(error).__name__}. The command may have taken effect."
