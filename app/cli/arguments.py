"""Arguments that several commands share, checked before anything is sent."""

import re
from typing import Annotated

import typer

from adapters.errors import InvalidName
from adapters.identity import parse_slug

_DURATION = re.compile(r"(0|[1-9][0-9]{0,9})([smhd]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def slug(field: str, text: str) -> str:
    """A tenant's or an adapter's name.

    Raises:
        typer.BadParameter
    """
    try:
        return parse_slug(text, field=field)
    except InvalidName as error:
        raise typer.BadParameter(f"found {error.found!r}, allowed {error.allowed}") from None


def tenant_name(text: str) -> str:
    return slug("tenant", text)


def adapter_name(text: str) -> str:
    return slug("adapter", text)


def version_name(text: str) -> str:
    """An adapter, or one of its versions: ``pricing`` or ``pricing@3``."""
    adapter, at, number = text.partition("@")
    if at and not re.fullmatch(r"[1-9][0-9]{0,9}", number, re.ASCII):
        raise typer.BadParameter(f"found {text!r}, allowed ADAPTER or ADAPTER@NUMBER")
    slug("adapter", adapter)
    return text


def seconds(text: str) -> int:
    """A duration such as 3600, 90s, 15m, 12h or 30d, in seconds."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"found {text!r}, allowed a number with s, m, h or d, for example 12h")
    return int(match[1]) * _UNITS[match[2]]


TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", parser=tenant_name, help="the tenant's name")]
TenantOption = Annotated[
    str | None,
    typer.Option("--tenant", metavar="TENANT", parser=tenant_name, help="the tenant; needs a platform key"),
]
VersionArgument = Annotated[
    str, typer.Argument(metavar="ADAPTER[@N]", parser=version_name, help="an adapter, or one of its versions")
]
AdapterOption = Annotated[
    str, typer.Option("--adapter", metavar="ADAPTER", parser=adapter_name, help="the adapter's name")
]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]
