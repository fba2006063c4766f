"""Commands of ``tenora adapters`` for aliases and canaries."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Optional

import typer

from tenora_client.cli.arguments import (
    TenantOption,
    Yes,
    adapter_name,
    confirm,
    no_version,
    seconds,
    slug,
    version_name,
)
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.output import emit_json, emit_record, emit_table, note
from tenora_client.transport import adapters_path

_WEIGHT = re.compile(r"([1-9][0-9]{0,9})=([1-9][0-9]{0,9})", re.ASCII)


def _alias_name(text: str) -> str:
    return slug(text)


def _one_version(text: str) -> str:
    if "@" not in version_name(text):
        raise no_version(text)
    return text


def _weight(text: str) -> tuple[str, int]:
    match = _WEIGHT.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a weight. Write VERSION=WEIGHT, such as 2=5.")
    return match[1], int(match[2])


def _step(text: str) -> dict[str, int]:
    weight, colon, duration = text.partition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,3}", weight, re.ASCII):
        raise typer.BadParameter(f"{text!r} is not a step. Write PERCENT:DURATION, such as 5:10m.")
    return {"weight": int(weight), "seconds": seconds(duration)}


def _number(text: str) -> float:
    # "nan" and "inf" are not JSON.
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text, re.ASCII):
        raise typer.BadParameter(f"{text!r} is not a valid number. Write one such as 0.02.")
    return float(text)


_Adapter = Annotated[str, typer.Argument(metavar="ADAPTER", parser=adapter_name, help="Name of the adapter")]
_Version = Annotated[str, typer.Argument(metavar="ADAPTER@N", parser=_one_version, help="Version of an adapter")]
_Alias = Annotated[str, typer.Option("--alias", metavar="ALIAS", parser=_alias_name, help="Name of the alias")]
_Revision = Annotated[
    Optional[int], typer.Option("--if-revision", min=1, help="Change the alias only if it still has this revision")
]
_Weights = Annotated[
    list[Any],
    typer.Option("--weight", metavar="N=WEIGHT", parser=_weight, help="Version and its weight; repeatable"),
]
_Steps = Annotated[
    Optional[list[Any]],
    typer.Option(
        "--step",
        metavar="PERCENT:DURATION",
        parser=_step,
        help="Share of the traffic in percent and its minimum duration, such as --step 5:10m --step 25:10m",
    ),
]

_ALIAS_COLUMNS = {"alias": "model", "versions": "weights", "revision": "revision", "updated": "updated_at"}
_CHANGE_COLUMNS = {
    "revision": "revision",
    "at": "at",
    "by": "actor",
    "action": "action",
    "versions": "weights",
    "reason": "reason",
}
_FIGURE_COLUMNS = {
    "version": "version",
    "requests": "requests",
    "errors": "errors",
    "empty or not finite": "empties",
    "streamed": "streamed",
    "p95 to first token, s": "ttft_p95_s",
}


def promote(
    version: _Version,
    alias: _Alias = "default",
    if_revision: _Revision = None,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Send all traffic of an alias to a version. A new alias is created."""
    adapter, _, number = version.partition("@")
    with connect_as_admin(url, key, as_json=as_json) as api:
        path, body = adapters_path(tenant, adapter, "aliases", alias), {"version": int(number)}
        target = api.call("PUT", path, body, headers=_condition(if_revision))
    _show_alias(target, as_json=as_json)


def split(
    adapter: _Adapter,
    weight: _Weights,
    alias: _Alias = "default",
    if_revision: _Revision = None,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Split an alias's traffic over versions by weight: --weight 1=95 --weight 2=5."""
    weights = dict(weight)
    if len(weights) < len(weight):
        raise typer.BadParameter("A version is given twice. Give each version once.", param_hint="--weight")
    with connect_as_admin(url, key, as_json=as_json) as api:
        path = adapters_path(tenant, adapter, "aliases", alias)
        target = api.call("PUT", path, {"weights": weights}, headers=_condition(if_revision))
    _show_alias(target, as_json=as_json)


def rollback(
    adapter: _Adapter,
    alias: _Alias = "default",
    if_revision: _Revision = None,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Return an alias to its previous target. A second rollback undoes the first."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        path = adapters_path(tenant, adapter, "aliases", alias, "rollback")
        target = api.call("POST", path, headers=_condition(if_revision))
    _show_alias(target, as_json=as_json)


def aliases(
    adapter: _Adapter, tenant: TenantOption = None, url: Url = None, key: Key = None, as_json: Json = False
) -> None:
    """List an adapter's aliases."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        rows = api.list(adapters_path(tenant, adapter, "aliases"))
    if as_json:
        emit_json(rows)
    else:
        emit_table(_ALIAS_COLUMNS, rows, empty="The adapter has no aliases.")


def unalias(
    adapter: _Adapter,
    alias: Annotated[str, typer.Option("--alias", metavar="ALIAS", parser=_alias_name, help="Alias to delete")],
    tenant: TenantOption = None,
    yes: Yes = False,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Delete an alias. Its history stays."""
    if not yes:
        confirm(f"Delete the alias {adapter}:{alias}?")
    with connect_as_admin(url, key, as_json=as_json) as api:
        api.call("DELETE", adapters_path(tenant, adapter, "aliases", alias))
    note(f"Deleted the alias {adapter}:{alias}.")


def history(
    adapter: _Adapter,
    alias: _Alias = "default",
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List an alias's changes, newest first."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        rows = api.list(adapters_path(tenant, adapter, "aliases", alias, "history"))
    if as_json:
        emit_json(rows)
    else:
        emit_table(_CHANGE_COLUMNS, rows, empty="The alias has no changes.")


def canary(
    version: _Version,
    alias: _Alias = "default",
    step: _Steps = None,
    min_requests: Annotated[Optional[int], typer.Option(help="Minimum answers of the new version in each step")] = None,
    max_error_rate: Annotated[
        Optional[float],
        typer.Option(metavar="SHARE", parser=_number, help="Maximum increase of the error rate, 0 to 1"),
    ] = None,
    max_empty_rate: Annotated[
        Optional[float],
        typer.Option(metavar="SHARE", parser=_number, help="Maximum increase of the rate of empty answers, 0 to 1"),
    ] = None,
    max_ttft_ratio: Annotated[
        Optional[float],
        typer.Option(metavar="RATIO", parser=_number, help="Maximum ratio of the times to first token, new to old"),
    ] = None,
    if_revision: _Revision = None,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Move an alias to a version step by step, with automatic rollback if the new version performs worse."""
    adapter, _, number = version.partition("@")
    options = {
        "steps": step or None,
        "min_requests": min_requests,
        "max_error_rate": max_error_rate,
        "max_empty_rate": max_empty_rate,
        "max_ttft_ratio": max_ttft_ratio,
    }
    policy = {name: value for name, value in options.items() if value is not None}
    with connect_as_admin(url, key, as_json=as_json) as api:
        path = adapters_path(tenant, adapter, "aliases", alias, "canary")
        record = api.call("PUT", path, {"version": int(number), "policy": policy}, headers=_condition(if_revision))
    _show_canary(record, as_json=as_json)


def canary_status(
    adapter: _Adapter,
    alias: _Alias = "default",
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Show the running canary of an alias, or the last one, with its figures."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        record = api.call("GET", adapters_path(tenant, adapter, "aliases", alias, "canary"))
    _show_canary(record, as_json=as_json)


def canary_cancel(
    adapter: _Adapter,
    alias: _Alias = "default",
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Cancel a canary and return all traffic to the version before it."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        record = api.call("DELETE", adapters_path(tenant, adapter, "aliases", alias, "canary"))
    _show_canary(record, as_json=as_json)


#: Commands in the order of the help.
COMMANDS = (promote, split, rollback, aliases, unalias, history, canary, canary_status, canary_cancel)


def _condition(revision: Optional[int]) -> dict[str, str]:
    return {} if revision is None else {"if-match": f'"{revision}"'}


def _show_alias(alias: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(alias)
    else:
        emit_record(alias, tuple(_ALIAS_COLUMNS.values()))


def _show_canary(canary: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(canary)
        return
    steps = canary["policy"]["steps"]
    step = {"step": f"{canary['step'] + 1} of {len(steps)}, {steps[canary['step']]['weight']}%"}
    emit_record({**canary, **step}, ("state", "step", "reason", "created_at", "ended_at"))
    rows = [{**canary[side], "version": f"{canary[side]['version']} ({side})"} for side in ("baseline", "candidate")]
    emit_table(_FIGURE_COLUMNS, rows, empty="")
