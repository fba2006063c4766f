"""``tenora usage``: usage by tenant, key, adapter and time."""

from typing import Annotated, Any, Optional
from urllib.parse import urlencode

import typer

from tenora_client.cli.arguments import moment
from tenora_client.cli.closed_values import checked_value
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.output import USAGE, emit_json, emit_line, emit_table, fail
from tenora_client.transport import path_of

_COLUMNS = {
    "tenant": "tenant",
    "key": "key",
    "adapter": "adapter",
    "version": "adapter",
    "hour": "start",
    "day": "start",
}
_SUMS = {
    "requests": "requests",
    "failed": "failed",
    "prompt": "prompt_tokens",
    "cached": "cached_tokens",
    "output": "output_tokens",
    "cold loads": "cold_loads",
    "load": "load",
    "slot": "slot",
    "cost": "money",
}


def usage(
    tenant: Annotated[Optional[str], typer.Option(help="Name of the tenant (default: all tenants)")] = None,
    own: Annotated[
        bool, typer.Option("--own", help="Show the key's own tenant, as every tenant's key does without this option")
    ] = False,
    by: Annotated[
        Optional[str],
        typer.Option(
            callback=lambda value: value and _groups(value),
            help=f"Groups, separated by commas: {', '.join(_COLUMNS)} (default: tenant, or adapter for a tenant's key)",
        ),
    ] = None,
    start: Annotated[
        Optional[str],
        typer.Option(
            "--from",
            metavar="TIME",
            parser=moment,
            help="Start of the period, such as 2026-11-01T00:00:00Z (default: 30 days before --to)",
        ),
    ] = None,
    end: Annotated[
        Optional[str], typer.Option("--to", metavar="TIME", parser=moment, help="End of the period (default: now)")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values")] = False,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Show the usage of requests: count, tokens, cold loads and slot time.

    A tenant's key needs the scope usage:read and shows its own tenant.
    """
    if own and tenant:
        fail("--own and --tenant exclude each other. Give one of them.", USAGE)
    parameters = {"tenant": tenant, "from": start, "to": end, "format": "csv" if csv else None}
    with connect_as_admin(url, key, as_json=as_json) as api:
        own = own or (tenant is None and not api.is_platform())
        by = ("adapter" if own else "tenant") if by is None else by
        query = urlencode({name: value for name, value in {"by": by, **parameters}.items() if value is not None})
        path = path_of("v1" if own else "admin", "usage")
        if csv:
            with api.download(f"{path}?{query}") as download:
                for line in b"".join(download.chunks).decode().splitlines():
                    emit_line(line)
            return
        report = api.call("GET", f"{path}?{query}")
    if as_json:
        emit_json(report)
    else:
        _print(report, [name for name in by.split(",") if name])


def _groups(text: str) -> str:
    for group in filter(None, text.split(",")):
        checked_value(group, _COLUMNS, "a group of --by")
    return text


def _print(report: dict[str, Any], by: list[str]) -> None:
    columns = {name: _COLUMNS[name] for name in by}
    rows = [_row(group, report["currency"]) for group in report["data"]]
    if rows and by:
        rows.append(_row(report["total"], report["currency"]) | {columns[by[0]]: "total"})
    emit_table(columns | _SUMS, rows, empty=f"There was no usage from {report['start']} to {report['end']}.")


def _row(used: dict[str, Any], currency: str) -> dict[str, Any]:
    seconds = {name: f"{used[f'{name}_s']:.1f} s" for name in ("load", "slot")}
    return {**used, **seconds, "money": f"{used['cost']} {currency}"}
