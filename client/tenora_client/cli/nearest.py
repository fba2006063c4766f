"""Nearest name for one that the server does not know, from the names that the key may list."""

from collections.abc import Iterable
from typing import Any, Optional

from tenora_client.cli.closed_values import did_you_mean
from tenora_client.cli.invocation import current
from tenora_client.transport import Api, Refused, adapters_path

_ADAPTER_ARGUMENTS = ("adapter", "version", "model")


def nearest(api: Api, refused: Refused) -> str:
    """Return a question with the nearest name, or an empty string if there is none."""
    arguments = current().arguments
    adapter, _, rest = _typed(arguments, *_ADAPTER_ARGUMENTS).partition("@")
    adapter, _, alias = adapter.partition(":")
    tenant = arguments.get("tenant")
    try:
        if refused.param in ("tenant", "recipient"):
            return _question(_typed(arguments, refused.param), _tenants(api))
        if refused.param == "adapter":
            return _question(adapter, _adapters(api, tenant))
        if refused.param == "version":
            return _newest(adapter, rest, _adapters(api, tenant))
        if refused.param == "alias":
            aliases = _adapters(api, tenant).get(adapter, {}).get("aliases", {})
            return _question(_typed(arguments, "alias") or alias, aliases)
        if refused.param == "model":
            return _model(api, adapter, rest, alias)
    except (Refused, KeyError, TypeError):
        # The key may not list these names: the server's message stands alone.
        return ""
    return ""


def adapter_argument() -> str:
    """Return the adapter that the command was given, without version and alias; empty for none."""
    return _typed(current().arguments, *_ADAPTER_ARGUMENTS).partition("@")[0].partition(":")[0]


def _typed(arguments: Any, *names: str) -> str:
    """Return the first of these arguments that was given."""
    return next((value for name in names if isinstance(value := arguments.get(name), str) and value), "")


def _question(text: str, names: Iterable[str]) -> str:
    return did_you_mean(text, names).strip()


def _tenants(api: Api) -> list[str]:
    return [row["slug"] for row in api.list("/admin/tenants")]


def _adapters(api: Api, tenant: Optional[str]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in api.list(adapters_path(tenant))}


def _newest(adapter: str, number: str, adapters: dict[str, dict[str, Any]]) -> str:
    versions = adapters.get(adapter, {}).get("versions") or []
    return f"The newest is {adapter}@{versions[0]}." if number and versions else ""


def _model(api: Api, adapter: str, number: str, alias: str) -> str:
    """Return the nearest model: another adapter, or another version or alias of the same one."""
    names = [row["id"] for row in api.call("GET", "/v1/models")["data"]]
    own = [name for name in names if name.partition("@")[0].partition(":")[0] == adapter]
    if not own:
        return _question(adapter, {name.partition("@")[0].partition(":")[0] for name in names})
    adapters = _adapters(api, None)
    if number:
        return _newest(adapter, number, adapters)
    return _question(alias, adapters.get(adapter, {}).get("aliases", {}))
