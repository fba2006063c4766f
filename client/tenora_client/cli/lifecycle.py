"""``tenora adapters delete``, ``deletions``, ``retire`` and ``restore``: end and resume the service of versions."""

import time
from typing import Annotated, Any, Optional

import httpx
import typer

from tenora_client.cli.arguments import TenantOption, VersionArgument, Yes, confirm, no_version, seconds
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.descriptions import show_version
from tenora_client.cli.output import emit_json, emit_record, emit_table, note
from tenora_client.transport import Api, Refused, adapters_path, path_of

_COLUMNS = {
    "deletion": "id",
    "subject": "subject",
    "state": "state",
    "requested": "requested_at",
    "finished": "finished_at",
}
_NODE_COLUMNS = {
    "node": "node",
    "reachable": "reachable",
    "gone from the engine": "engine_gone_at",
    "gone from the disk": "disk_gone_at",
}
_BLOB_COLUMNS = {"blob": "digest", "gone": "gone_at", "kept": "kept"}
_POLL_S = 0.3
_WAIT_S = 30

Force = Annotated[bool, typer.Option("--force", help="Detach it from aliases, canaries and pins first")]


def delete(
    adapter: VersionArgument,
    tenant: TenantOption = None,
    force: Force = False,
    wait: Annotated[
        Optional[int],
        typer.Option(metavar="DURATION", parser=seconds, help="Maximum wait for the verified removal (default: 30s)"),
    ] = None,
    yes: Yes = False,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Delete an adapter with all its versions, or one version, and print the report of verified removals."""
    name, _, number = adapter.partition("@")
    subject = f"version {adapter}" if number else f"adapter {name} with all its versions"
    if not yes:
        confirm(f"Delete {subject}?")
    path = adapters_path(tenant, name, "versions", number) if number else adapters_path(tenant, name)
    with connect_as_admin(url, key, as_json=as_json) as api:
        report = api.call("DELETE", f"{path}?force=true" if force else path)
        report = _wait(api, tenant, report, _WAIT_S if wait is None else wait)
    _show(report, as_json=as_json)
    if report["state"] == "finished":
        note(f"Deleted {subject}.")
    else:
        note(f"Deleted {subject}. The removal continues: run `tenora adapters deletions {report['id']}` to follow it.")


def deletions(
    deletion: Annotated[Optional[str], typer.Argument(help="Id of a deletion (default: list all)")] = None,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Show a deletion's report, or list a tenant's deletions."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        if deletion is not None:
            _show(api.call("GET", _path(tenant, deletion)), as_json=as_json)
            return
        rows = api.list(_path(tenant))
    if as_json:
        emit_json(rows)
    else:
        emit_table(_COLUMNS, rows, empty="There are no deletions.")


def retire(
    version: VersionArgument,
    reason: Annotated[str, typer.Option(help="Reason that callers see")],
    tenant: TenantOption = None,
    force: Force = False,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Stop new requests for a version. Its bytes stay."""
    name, number = _name_and_number(version)
    path = adapters_path(tenant, name, "versions", number, "retire")
    with connect_as_admin(url, key, as_json=as_json) as api:
        record = api.call("POST", f"{path}?force=true" if force else path, {"reason": reason})
    emit_json(record) if as_json else show_version(record)


def restore(
    version: VersionArgument, tenant: TenantOption = None, url: Url = None, key: Key = None, as_json: Json = False
) -> None:
    """Serve a retired version again. A platform key also restores a quarantined one that passes a smoke check."""
    name, number = _name_and_number(version)
    with connect_as_admin(url, key, as_json=as_json) as api:
        record = api.call("POST", adapters_path(tenant, name, "versions", number, "restore"))
    emit_json(record) if as_json else show_version(record)


def _wait(api: Api, tenant: Optional[str], report: dict[str, Any], wait_s: float) -> dict[str, Any]:
    until = time.monotonic() + wait_s
    while report["state"] != "finished" and time.monotonic() < until:
        time.sleep(_POLL_S)
        try:
            report = api.call("GET", _path(tenant, report["id"]))
        except Refused as refused:
            if refused.status == httpx.codes.FORBIDDEN:
                break  # a key with write scope only: the deletion succeeded, its report cannot be read
            raise
    return report


def _path(tenant: Optional[str], *deletion: str) -> str:
    root = ("v1",) if tenant is None else ("admin", "tenants", tenant)
    return path_of(*root, "deletions", *deletion)


def _name_and_number(version: str) -> tuple[str, str]:
    name, _, number = version.partition("@")
    if not number:
        raise no_version(version)
    return name, number


def _show(report: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(report)
        return
    emit_record(report, ("id", "subject", "state", "requested_at", "listings_gone_at", "finished_at"))
    emit_table(_NODE_COLUMNS, report["nodes"], empty="No server held a deleted version.")
    emit_table(
        _BLOB_COLUMNS,
        report["blobs"],
        empty="No blobs are listed. A platform key sees them after the decision on them.",
    )
