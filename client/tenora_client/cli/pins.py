"""Commands of ``tenora adapters`` for pins (versions that always keep an engine slot)."""

from typing import Annotated, Optional

import typer

from tenora_client.cli.arguments import TenantOption, no_version, version_name
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.output import emit_json, emit_record, emit_table, note
from tenora_client.transport import adapters_path, path_of

_FIELDS = ("name", "tenant", "created_at", "created_by", "held")
_PIN_COLUMNS = {"tenant": "tenant", "version": "name", "in the engine": "held", "since": "created_at"}
_PRELOAD_COLUMNS = {"preload": "name", "versions": "versions", "problem": "problem"}


def one_version(text: str) -> str:
    """Parse the name of a version: ``pricing@3``."""
    if "@" not in version_name(text):
        raise no_version(text)
    return text


_Version = Annotated[str, typer.Argument(metavar="ADAPTER@N", parser=one_version, help="Version of an adapter")]


def pin(
    version: _Version, tenant: TenantOption = None, url: Url = None, key: Key = None, as_json: Json = False
) -> None:
    """Reserve an engine slot for a version. Its requests never wait for a slot, and all others share one less."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        record = api.call("PUT", _path(tenant, version))
    if as_json:
        emit_json(record)
    else:
        emit_record(record, _FIELDS)


def unpin(
    version: _Version, tenant: TenantOption = None, url: Url = None, key: Key = None, as_json: Json = False
) -> None:
    """Release the reserved slot of a version."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        api.call("DELETE", _path(tenant, version))
    note(f"{version} is no longer pinned.")


def pins(url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """List pinned and preloaded versions of all tenants. Needs a platform key."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        placement = api.call("GET", path_of("admin", "pins"))
    if as_json:
        emit_json(placement)
        return
    empty = f"No version is pinned. The engine has {placement['slots']} slots."
    emit_table(_PIN_COLUMNS, placement["data"], empty=empty)
    if placement["preloads"]:
        emit_table(_PRELOAD_COLUMNS, placement["preloads"], empty="")


def _path(tenant: Optional[str], version: str) -> str:
    adapter, _, number = version.partition("@")
    return adapters_path(tenant, adapter, "versions", number, "pin")


COMMANDS = (pin, unpin, pins)
