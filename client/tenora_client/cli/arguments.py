"""Shared arguments of commands, validated before any request is sent."""

import re
import sys
from datetime import datetime
from typing import Annotated, Optional

import typer

from tenora_client.cli.output import USAGE, fail
from tenora_client.names import SLUG_WORDS, is_slug
from tenora_client.transport import path_of

_DURATION = re.compile(r"(0|[1-9][0-9]{0,9})([smhd])", re.ASCII)
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,9})", re.ASCII)
_NO_LIMIT, _MAX_DIGITS = "none", 19
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def slug(text: str) -> str:
    """Parse the name of a tenant, an adapter or an alias.

    Raises:
        typer.BadParameter: the name breaks the grammar.
    """
    if not is_slug(text):
        raise typer.BadParameter(f"{text[:80]!r} is not a valid name. Use {SLUG_WORDS}.")
    return text


def tenant_name(text: str) -> str:
    return slug(text)


def adapter_name(text: str) -> str:
    try:
        return slug(text)
    except typer.BadParameter as error:
        proposal = _proposal(text)
        example = f" A valid name is {proposal}." if proposal else ""
        raise typer.BadParameter(f"{text[:80]!r} is not a valid name. Use {SLUG_WORDS}.{example}") from error


def _proposal(text: str) -> str:
    """Return the nearest valid name, or an empty string if no character of the text is usable."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower())[:63].strip("._-")


def named(adapter: Optional[str], command: str) -> str:
    """Return the adapter's name. End the command if it is missing."""
    if adapter is None:
        fail(f"The adapter has no name. Give one: `tenora adapters {command} --adapter NAME`.", USAGE)
    return adapter


def version_name(text: str) -> str:
    """Parse the name of an adapter or of one of its versions: ``pricing`` or ``pricing@3``."""
    adapter, at, number = text.partition("@")
    if at and not re.fullmatch(r"[1-9][0-9]{0,9}", number, re.ASCII):
        raise typer.BadParameter(f"{text!r} is not a valid version. Write ADAPTER or ADAPTER@NUMBER.")
    slug(adapter)
    return text


def no_version(text: str) -> typer.BadParameter:
    """Error for an adapter's name in a place that needs a version."""
    return typer.BadParameter(f"{text!r} names no version. Write {text}@N. `tenora adapters show {text}` lists them.")


def seconds(text: str) -> int:
    """Parse a duration such as 90s, 15m, 12h or 30d into seconds.

    A bare number is refused: 90 as the lifetime of a key seldom means seconds.

    Raises:
        typer.BadParameter: the text is not a duration with a unit.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        if _NUMBER.fullmatch(text):
            units = ", ".join(f"{text}{unit}" for unit in _UNITS)
            raise typer.BadParameter(f"{text} has no unit. Write one of {units}: seconds, minutes, hours or days.")
        raise typer.BadParameter(f"{text!r} is not a duration. Write a whole number with s, m, h or d, such as 12h.")
    return int(match[1]) * _UNITS[match[2]]


def moment(text: str) -> str:
    """Check a point in time, which the server parses.

    Raises:
        typer.BadParameter: the text is not a date or a time.
    """
    try:
        # Before Python 3.11 the parser does not know the suffix Z.
        datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise typer.BadParameter(f"{text[:80]!r} is not a time. Write one such as 2026-11-01T00:00:00Z.") from None
    return text


def number_or_none(field: str, text: str) -> Optional[int]:
    """Parse a limit: a number, or ``none`` for no limit. End the command on anything else."""
    if text == _NO_LIMIT:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        option = f"--{field.replace('_', '-')}"
        fail(f"{option} is {text!r}. Write a whole number from 0, or {_NO_LIMIT} for no limit.", USAGE)
    return int(text)


def amount_or_none(text: str) -> Optional[str]:
    """Amount of money, which the server parses, or None for the word ``none``, which lifts the limit."""
    return None if text == _NO_LIMIT else text


def keys_path(tenant: Optional[str], *, platform: bool = False) -> str:
    """Path of a tenant's keys, or of the platform's.

    Raises:
        typer.BadParameter: neither or both of the two are given.
    """
    if (tenant is None) is not platform:
        raise typer.BadParameter("Give either --tenant TENANT or --platform.")
    return path_of("admin", "keys") if tenant is None else path_of("admin", "tenants", tenant, "keys")


def own_keys_path(tenant: Optional[str], *, platform: bool, own: bool) -> str:
    """Path of a tenant's keys, of the platform's, or of the calling key's tenant.

    Raises:
        typer.BadParameter: none or several of the three are given.
    """
    if (tenant is not None) + platform + own != 1:
        raise typer.BadParameter("Give one of --tenant TENANT, --platform or --own.")
    return path_of("v1", "keys") if own else keys_path(tenant, platform=platform)


def checked_key_id(key_id: str) -> str:
    """Check the form of a key's id.

    Raises:
        typer.BadParameter: the text cannot be the id of a key.
    """
    if not (key_id.isascii() and key_id.isalnum()):
        raise typer.BadParameter(f"KEY-ID is {key_id!r}. An id consists of letters and digits.")
    return key_id


TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", parser=tenant_name, help="Name of the tenant")]
TenantOption = Annotated[
    Optional[str],
    typer.Option("--tenant", metavar="TENANT", parser=tenant_name, help="Name of the tenant; needs a platform key"),
]
VersionArgument = Annotated[
    str, typer.Argument(metavar="ADAPTER[@N]", parser=version_name, help="Adapter, or one of its versions")
]
AdapterOption = Annotated[
    str, typer.Option("--adapter", metavar="ADAPTER", parser=adapter_name, help="Name of the adapter")
]
#: As :data:`AdapterOption`, for a command that reports a missing name by itself.
AdapterName = Annotated[
    Optional[str],
    typer.Option("--adapter", metavar="ADAPTER", parser=adapter_name, help="Name of the adapter (required)"),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation")]


def confirm(question: str) -> None:
    """Ask before a destructive step. End the command on a no, or without a terminal."""
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort:
        # The question's line has no end.
        sys.stderr.write("\n")
        fail("Nothing was deleted. Add --yes to delete without a question.")
