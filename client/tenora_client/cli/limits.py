"""``limits`` of tenants, keys and adapters, and ``tenora limits``, which shows the remainder of each."""

from typing import Annotated, Any, Optional, Union

import typer

from tenora_client.cli.arguments import (
    TenantArgument,
    TenantOption,
    adapter_name,
    amount_or_none,
    checked_key_id,
    keys_path,
    number_or_none,
)
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.output import emit_json, emit_table
from tenora_client.transport import adapters_path, path_of

_LIMIT = "NUMBER|none"
_AMOUNT = "AMOUNT|none"
_COLUMNS = {"limit": "limit", "allowed": "allowed"}
_REMAINING = {name: name for name in ("applies to", "limit", "allowed", "used", "remaining", "resets in")}

KeyId = Annotated[str, typer.Argument(metavar="KEY-ID", help="Id of the key, as `keys list` shows it")]
Requests = Annotated[
    Optional[str], typer.Option("--requests-per-minute", metavar=_LIMIT, help="Maximum requests per minute")
]
Tokens = Annotated[
    Optional[str],
    typer.Option("--tokens-per-minute", metavar=_LIMIT, help="Maximum prompt and answer tokens per minute"),
]
Concurrent = Annotated[
    Optional[str], typer.Option("--concurrent-requests", metavar=_LIMIT, help="Maximum requests at the same time")
]
PerRequest = Annotated[
    Optional[str],
    typer.Option(
        "--tokens-per-request", metavar=_LIMIT, help="Maximum tokens of a request: its prompt and its longest answer"
    ),
]
PerDay = Annotated[
    Optional[str],
    typer.Option("--tokens-per-day", metavar=_LIMIT, help="Maximum prompt and answer tokens per day (UTC)"),
]
PerMonth = Annotated[
    Optional[str],
    typer.Option("--tokens-per-month", metavar=_LIMIT, help="Maximum prompt and answer tokens per month (UTC)"),
]

CostPerDay = Annotated[
    Optional[str], typer.Option("--cost-per-day", metavar=_AMOUNT, help="Maximum cost per day (UTC), such as 12.50")
]
CostPerMonth = Annotated[
    Optional[str], typer.Option("--cost-per-month", metavar=_AMOUNT, help="Maximum cost per month (UTC), such as 200")
]


def limits(url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Show the limits of a key and its tenant, and what remains of each."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        limits = api.call("GET", path_of("v1", "limits"))
    if as_json:
        emit_json(limits)
        return
    rows = [{"applies to": owner, **_row(limit)} for owner in ("tenant", "key") for limit in limits[owner]]
    emit_table(_REMAINING, rows, empty="This key and its tenant have no limits.")


def tenant_limits(
    tenant: TenantArgument,
    requests_per_minute: Requests = None,
    tokens_per_minute: Tokens = None,
    concurrent_requests: Concurrent = None,
    tokens_per_request: PerRequest = None,
    tokens_per_day: PerDay = None,
    tokens_per_month: PerMonth = None,
    cost_per_day: CostPerDay = None,
    cost_per_month: CostPerMonth = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Set limits of a tenant, shared by all its keys, and show all of them."""
    changes = _changes(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrent_requests=concurrent_requests,
        tokens_per_request=tokens_per_request,
        tokens_per_day=tokens_per_day,
        tokens_per_month=tokens_per_month,
        cost_per_day=cost_per_day,
        cost_per_month=cost_per_month,
    )
    path = path_of("admin", "tenants", tenant)
    with connect_as_admin(url, key, as_json=as_json) as api:
        owner = api.call("PATCH", path, {"limits": changes}) if changes else api.call("GET", path)
    _show(owner["limits"], as_json=as_json)


def key_limits(
    key_id: KeyId,
    tenant: TenantOption = None,
    requests_per_minute: Requests = None,
    tokens_per_minute: Tokens = None,
    concurrent_requests: Concurrent = None,
    tokens_per_request: PerRequest = None,
    tokens_per_day: PerDay = None,
    tokens_per_month: PerMonth = None,
    cost_per_day: CostPerDay = None,
    cost_per_month: CostPerMonth = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Set limits of a tenant's key, which apply together with the tenant's, and show all of them."""
    changes = _changes(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrent_requests=concurrent_requests,
        tokens_per_request=tokens_per_request,
        tokens_per_day=tokens_per_day,
        tokens_per_month=tokens_per_month,
        cost_per_day=cost_per_day,
        cost_per_month=cost_per_month,
    )
    path = f"{keys_path(tenant)}{path_of(checked_key_id(key_id))}"
    with connect_as_admin(url, key, as_json=as_json) as api:
        owner = api.call("PATCH", path, {"limits": changes})
    _show(owner["limits"], as_json=as_json)


def adapter_limits(
    adapter: Annotated[str, typer.Argument(metavar="ADAPTER", parser=adapter_name, help="Name of the adapter")],
    tenant: TenantOption = None,
    requests_per_minute: Requests = None,
    tokens_per_minute: Tokens = None,
    concurrent_requests: Concurrent = None,
    tokens_per_request: PerRequest = None,
    tokens_per_day: PerDay = None,
    tokens_per_month: PerMonth = None,
    cost_per_day: CostPerDay = None,
    cost_per_month: CostPerMonth = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Set limits of an adapter, shared by all callers including recipients of shares, and show all of them."""
    changes = _changes(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrent_requests=concurrent_requests,
        tokens_per_request=tokens_per_request,
        tokens_per_day=tokens_per_day,
        tokens_per_month=tokens_per_month,
        cost_per_day=cost_per_day,
        cost_per_month=cost_per_month,
    )
    path = adapters_path(tenant, adapter)
    with connect_as_admin(url, key, as_json=as_json) as api:
        owner = api.call("PATCH", path, {"limits": changes}) if changes else api.call("GET", path)
    _show(owner["limits"], as_json=as_json)


def _changes(**texts: Optional[str]) -> dict[str, Optional[Union[int, str]]]:
    return {
        name: amount_or_none(text) if name.startswith("cost") else number_or_none(name, text)
        for name, text in texts.items()
        if text is not None
    }


def _show(limits: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(limits)
    else:
        rows = [{"limit": name, "allowed": "no limit" if value is None else value} for name, value in limits.items()]
        emit_table(_COLUMNS, rows, empty="")


def _row(limit: dict[str, Any]) -> dict[str, Any]:
    reset_s, used = limit["reset_s"], limit["used"]
    times = {"used": "" if used is None else used, "resets in": "" if reset_s is None else f"{reset_s:.0f} s"}
    return {**limit, **times}
