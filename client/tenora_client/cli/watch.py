"""``tenora adapters watch``: follow the event feed, one line per event."""

import time
from collections.abc import Iterator
from typing import Annotated, Any, Optional

import httpx
import typer

from tenora_client.cli.arguments import TenantOption
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.output import clean, emit_json_line, emit_line, note
from tenora_client.transport import Api, FeedEvent, Refused, path_of

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0
_SILENCE_S = 45.0


def watch(
    tenant: TenantOption = None,
    after: Annotated[
        Optional[int], typer.Option(min=0, help="Id of the event after which the output starts (default: the newest)")
    ] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Print events: versions, aliases, deletions, quarantines, and the engine's loads and evictions.

    A platform key sees all tenants, or one with --tenant. A tenant's key sees its tenant's events. After a lost
    connection the feed resumes after the last event.
    """
    with connect_as_admin(url, key, as_json=as_json) as api:
        for event in follow(api, _feed(api, tenant), after):
            emit_json_line(event.data) if as_json else emit_line(_line(event.data))


def follow(api: Api, path: str, after: Optional[int]) -> Iterator[FeedEvent]:
    """Follow the feed and reconnect as often as needed.

    Raises:
        Refused: the server refused the request, other than with a server error after a first event.
        httpx.TransportError: the first connection failed.
    """
    pause, reached = _FIRST_PAUSE_S, False
    while True:
        try:
            for event in api.feed(path, after=after, silence_s=_SILENCE_S):
                reached, pause = True, _FIRST_PAUSE_S
                if event.type == "end":
                    note(f"The server ended the feed: {str(event.data.get('reason')).rstrip('.')}. Reconnecting.")
                    break
                if event.id is not None:
                    after = event.id
                if event.type:
                    yield event
        except Refused as refused:
            if not reached or refused.status < httpx.codes.INTERNAL_SERVER_ERROR:
                raise
        except httpx.TransportError as error:
            if not reached:
                raise
            note(f"Lost the connection ({type(error).__name__}). Reconnecting.")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _feed(api: Api, tenant: Optional[str]) -> str:
    if tenant is not None:
        return f"{path_of('admin', 'events')}?tenant={tenant}"
    return path_of("admin", "events") if api.is_platform() else path_of("v1", "events")


def _line(event: dict[str, Any]) -> str:
    seconds, actor = event.get("seconds"), event.get("actor")
    parts = [
        str(event.get("at", ""))[:19],
        str(event.get("type")),
        f"{event.get('tenant') or '-'}/{event.get('subject')}",
        f"by {actor}" if actor else f"on node {str(event.get('node'))[:8]}",
        f"in {seconds:.2f} s" if isinstance(seconds, float) else "",
        _change(event.get("after")),
    ]
    return clean("  ".join(part for part in parts if part))


def _change(after: Any) -> str:
    if not isinstance(after, dict):
        return ""
    return " ".join(f"{name}={_plain(value)}" for name, value in after.items() if value not in ({}, []))


def _plain(value: Any) -> str:
    """Return a value without the braces and quotes of Python: ``1=95,2=5`` for weights."""
    if isinstance(value, dict):
        return ",".join(f"{name}={_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ",".join(_plain(item) for item in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    return str(value)
