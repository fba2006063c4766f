"""``tenora status`` and ``tenora version``: the server as the key may see it, and the releases of both sides."""

from typing import Any, Optional

import typer
from msgspec import ValidationError

from tenora_client import __version__
from tenora_client.answers import read
from tenora_client.cli.access import Access, admin_key, resolve
from tenora_client.cli.connection import Json, Key, Url, connect
from tenora_client.cli.login import own_key
from tenora_client.cli.next_steps import server_version
from tenora_client.cli.output import FAILED, emit_json, emit_record, note
from tenora_client.transport import Api, Refused
from tenora_client.types import ServerFacts

#: Sent where there is no key: the health routes need none.
_NO_KEY = "none"

_RECORD = ("server", "state", "problems", "version", "client", "base", "device", "context", "adapters", "key")


def status(url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Show whether the server is ready (else exit code 1), and with a key its release, base and adapters."""
    access = resolve(url, key, admin_key)
    with connect(_with_any_key(access), as_json=as_json) as api:
        ready = _readiness(api)
        record = {
            "server": access.url,
            "state": ready.get("status"),
            "problems": {name: text for name, text in (ready.get("checks") or {}).items() if text != "ok"},
            "client": __version__,
            **_facts(api, access),
        }
    if as_json:
        emit_json(record)
    else:
        emit_record(record, _RECORD)
    if access.key is None:
        note(f"Without a key, no more is shown. Run `tenora login --url {access.url}`.")
    elif record["version"] is None:
        note("The server did not show its facts: the key is not valid, or the server is of an older release.")
    if record["state"] not in ("ready", "degraded"):
        raise typer.Exit(FAILED)


def version(url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Print the releases of the client and of the server."""
    access = resolve(url, key, admin_key)
    found: Optional[str] = None
    if access.key is not None:
        with connect(access, as_json=as_json) as api:
            found = server_version(api)
    record = {"client": __version__, "server": found, "url": access.url}
    if as_json:
        emit_json(record)
    else:
        emit_record(record, ("client", "server", "url"))
    if access.key is None:
        note(f"A server tells its release to a key. Run `tenora login --url {access.url}`.")


def _with_any_key(access: Access) -> Access:
    return access if access.key else Access(access.url, _NO_KEY, "no key")


def _readiness(api: Api) -> dict[str, Any]:
    """Return the answer of the readiness probe, which has a status of 503 if the server is not ready."""
    answer = api.send("GET", "/health/ready")
    try:
        body = answer.json()
        body["status"] + ""
    except (ValueError, KeyError, TypeError):
        raise Refused(
            answer.status_code, {"error": {"message": "The answer is not from a Tenora server. Check --url."}}, None
        ) from None
    ready: dict[str, Any] = body
    return ready


def _facts(api: Api, access: Access) -> dict[str, Any]:
    """Return what the key may see of the server. Fields that it may not see are None."""
    facts: dict[str, Any] = dict.fromkeys(("version", "base", "device", "context", "adapters", "key"))
    if access.key is None:
        return facts
    facts["key"] = access.key_words
    try:
        server = read(ServerFacts, api.call("GET", "/v1/server"))
    except (Refused, ValidationError):
        return facts
    return {
        **facts,
        "version": server.version,
        "base": server.base.name,
        "device": server.device,
        "context": server.context,
        "adapters": _count(api),
    }


def _count(api: Api) -> Optional[int]:
    """Return the number of adapters of the key's tenant, or of the engine's for a platform key."""
    try:
        if own_key(api).tenant is None:
            total: int = api.call("GET", "/admin/engine?limit=1")["versions"]["total"]
            return total
        return len(api.list("/v1/adapters"))
    except (Refused, ValidationError, KeyError, TypeError):
        return None
