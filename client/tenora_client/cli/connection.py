"""Resolve the server and the key of a command.

Each comes from the first of these that has it: the options, the environment, the ``demo.json`` that
``tenora server serve --demo`` leaves in HOME (the server's data folder). A demo key is sent to the demo's address only.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Optional

import httpx
import typer

from tenora_client.cli.demo_access import DemoAccess
from tenora_client.cli.next_steps import next_step
from tenora_client.cli.output import FAILED, UNREACHABLE, USAGE, emit_json_error, fail, show_reasons
from tenora_client.configuration import DEFAULT_URL
from tenora_client.transport import Api, Refused

DEMO_FILE = "demo.json"

Url = Annotated[
    Optional[str],
    typer.Option("--url", envvar="TENORA_URL", help=f"Address of the server (default: the demo's, else {DEFAULT_URL})"),
]
Key = Annotated[
    Optional[str],
    typer.Option("--key", envvar="TENORA_KEY", show_envvar=True, help="API key (default: the demo's)"),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON")]


@contextmanager
def connect_as_admin(url: Optional[str], key: Optional[str], *, as_json: bool) -> Iterator[Api]:
    """Open an API client with the given key, or the demo's platform key. End the command when a call fails."""
    demo = read_demo(home())
    address = _address(url, demo)
    with (
        _report_errors(address, as_json=as_json),
        Api(address, _key(key, address, demo, demo.admin_key if demo else None)) as api,
    ):
        yield api


@contextmanager
def connect_as_tenant(
    url: Optional[str], key: Optional[str], *, tenant: Optional[str], model: Optional[str], as_json: bool
) -> Iterator[Api]:
    """Open an API client with the given key, or the key of a demo tenant. End the command when a call fails."""
    demo = read_demo(home())
    address = _address(url, demo)
    demo_key = tenant_key(demo, tenant, model) if demo else None
    with _report_errors(address, as_json=as_json), Api(address, _key(key, address, demo, demo_key)) as api:
        yield api


def tenant_key(demo: DemoAccess, tenant: Optional[str], model: Optional[str]) -> Optional[str]:
    """Return the demo key of this tenant, of the owner of adapter ``model``, or of the first tenant."""
    if tenant is not None:
        return demo.tenants[tenant].key if tenant in demo.tenants else None
    adapter = (model or "").partition("@")[0].partition(":")[0]
    owners = [access for access in demo.tenants.values() if adapter in access.adapters]
    return next((access.key for access in (*owners, *demo.tenants.values())), None)


def _address(url: Optional[str], demo: Optional[DemoAccess]) -> str:
    return (url or (demo.base_url if demo else DEFAULT_URL)).rstrip("/")


def _key(key: Optional[str], address: str, demo: Optional[DemoAccess], demo_key: Optional[str]) -> str:
    if key is None and demo is not None and address == demo.base_url.rstrip("/"):
        key = demo_key
    if key is None:
        fail(f"There is no key for {address}. Give --key or set TENORA_KEY.", USAGE)
    if not (key.isascii() and key.isprintable()):
        fail("--key has characters that are not printable ASCII. Copy the key again.", USAGE)
    return key


@contextmanager
def _report_errors(address: str, *, as_json: bool) -> Iterator[None]:
    """End the command with the server's error message, or with the cause of a failed connection."""
    try:
        yield
    except Refused as refused:
        if as_json:
            emit_json_error(refused.body)
            raise typer.Exit(FAILED) from None
        if len(refused.reasons) > 1:
            show_reasons(refused.reasons)
        fail(" ".join(filter(None, (str(refused), next_step(refused)))), FAILED)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        if "://" not in address:
            fail(f"--url {address} has no scheme. Write http://{address}.", USAGE)
        fail(f"--url {address} is not a valid address ({error}). Write one such as {DEFAULT_URL}.", USAGE)
    except httpx.TimeoutException:
        fail(f"{address} did not answer in time. Check the server, then try again.", UNREACHABLE)
    except httpx.ConnectError as error:
        fail(
            f"Cannot reach {address}: {error}. Check that the server runs there, or give another address with --url or "
            "TENORA_URL.",
            UNREACHABLE,
        )
    except httpx.TransportError as error:
        fail(f"Lost the connection to {address}: {error}. The command may have taken effect.", UNREACHABLE)


def home() -> Path:
    """Folder of ``demo.json``. A client reads no other setting of the server."""
    return Path(os.environ.get("TENORA_HOME") or ".tenora")


def read_demo(folder: Path) -> Optional[DemoAccess]:
    """Load the demo published from this HOME, if any."""
    path = folder / DEMO_FILE
    try:
        return DemoAccess.parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        fail(f"{path} is not a readable demo file ({type(error).__name__}). Remove it or set TENORA_HOME.", USAGE)
