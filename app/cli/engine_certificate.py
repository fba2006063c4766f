"""``tenora engines certificate``: certificates of a cluster that spans several machines."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from app.cli.configuration import load_settings
from app.cli.setup import report_failures
from app.ray.library import is_loopback, tls_variables
from tenora_client.cli.output import USAGE, emit_line, fail, note

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def certificate(
    addresses: Annotated[
        list[str] | None,
        typer.Option("--address", help="IP address or name of this machine in the cluster (default: TENORA_RAY__HOST)"),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(help="Folder of the certificate authority (default: HOME/secrets/ray-authority)"),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for this machine's certificate (default: HOME/secrets/ray-tls)")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until the certificate expires")] = 365,
) -> None:
    """Issue a certificate of this machine for a cluster on several machines.

    The first run creates the certificate authority. Copy its folder to each other machine before you run this there.
    The command prints the variables that Ray reads.
    """
    settings = load_settings()
    from app.ray.certificates import create_authority, issue

    secrets = settings.home.resolve() / "secrets"
    authority = authority.resolve() if authority else secrets / "ray-authority"
    folder = folder.resolve() if folder else secrets / "ray-tls"
    own = list(dict.fromkeys(addresses or [settings.ray.host]))
    if all(map(is_loopback, own)):
        fail("The certificate would name no address of the network. Add --address, such as --address 10.0.0.5.", USAGE)
    with report_failures():
        create_authority(authority)
        issue(authority, folder, [*_LOOPBACK, *own], days=days)
    for name, value in tls_variables(authority, folder).items():
        emit_line(f"export {name}={shlex.quote(value)}")
    note("Set these variables for `ray start`, `tenora engines` and `tenora server serve` on this machine.")
