"""``tenora engine``: slots, tiers and queues of a server's engine."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Optional

import typer
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.text import Text

from tenora_client.cli.arguments import seconds
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.output import clean, emit_json, emit_json_line, emit_line, emit_table, stdout, table_of
from tenora_client.transport import Api, path_of

app = typer.Typer(no_args_is_help=True, help="Slots, tiers and queues of a server's engine. Needs a platform key.")

_TIERS = {
    "tier": "tier",
    "used": "used",
    "limit": "limit",
    "hits": "hits",
    "misses": "misses",
    "hit rate": "rate",
    "evictions": "evictions",
    "failures": "failures",
}
_LOADS = {"load": "phase", "p50": "p50", "p99": "p99"}
_TENANTS = {
    "tenant": "tenant",
    "weight": "weight",
    "running": "running",
    "waiting": "waiting",
    "served": "counter",
}
_VERSIONS = {
    "adapter": "name",
    "in": "tier",
    "pinned": "pinned",
    "draining": "draining",
    "leases": "leases",
    "running": "running",
    "waiting": "waiting",
    "oldest wait": "oldest",
    "size": "size",
}
_NODES = {
    "node": "name",
    "id": "id",
    "role": "role",
    "alive": "alive",
    "seen": "seen_at",
    "clock": "clock",
    "state": "state",
    "slots": "slots",
    "running": "running",
    "waiting": "waiting",
    "age": "age",
}
_REPLICAS = {
    "replica": "node",
    "state": "state",
    "used": "slots_used",
    "slots": "slots",
    "running": "running",
    "waiting": "waiting",
    "loads": "loads",
    "requests": "requests",
    "retries": "retries",
    "lost": "lost",
}
_PHASES = ("fetch", "stage", "wait", "copy", "total")
_PAUSE_S = 1


def _pause(text: str) -> int:
    pause_s = seconds(text)
    if not pause_s:
        raise typer.BadParameter(f"The interval is {text}. Write 1s or more.")
    return pause_s


@dataclass(frozen=True)
class _Part:
    columns: Mapping[str, str]
    rows: list[dict[str, Any]]


@app.command()
def show(
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Maximum number of tenants, and of adapters, to show")
    ] = 100,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Show slots, tiers, load times and queues of the server that answers."""
    with connect_as_admin(url, key, as_json=as_json) as api:
        view = _ask(api, limit)
    if as_json:
        emit_json(view)
    else:
        _print(view)


@app.command()
def top(
    interval: Annotated[
        Optional[int], typer.Option(metavar="DURATION", parser=_pause, help="Time between two refreshes (default: 1s)")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit")] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Maximum number of tenants, and of adapters, to show")
    ] = 20,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Watch slots, tiers, load times and queues until interrupted. With --json, print one line per refresh."""
    console = stdout()
    with connect_as_admin(url, key, as_json=as_json) as api:
        looks = _looks(api, limit, interval or _PAUSE_S, once=once)
        if as_json:
            for view in looks:
                emit_json_line(view)
        elif once or not console.is_terminal:
            for view in looks:
                _print(view)
        else:
            with Live(console=console, screen=True, auto_refresh=False) as screen:
                for view in looks:
                    screen.update(_drawn(view), refresh=True)


def _looks(api: Api, limit: int, interval: int, *, once: bool) -> Iterator[dict[str, Any]]:
    yield _ask(api, limit)
    while not once:
        time.sleep(interval)
        yield _ask(api, limit)


def _ask(api: Api, limit: int) -> dict[str, Any]:
    view: dict[str, Any] = api.call("GET", f"{path_of('admin', 'engine')}?limit={limit}")
    return view


def _print(view: Mapping[str, Any]) -> None:
    emit_line(_headline(view))
    for part in _parts(view):
        emit_table(part.columns, part.rows, empty="")


def _drawn(view: Mapping[str, Any]) -> Group:
    tables: list[RenderableType] = [table_of(part.columns, part.rows) for part in _parts(view)]
    return Group(Text(clean(_headline(view)), style="bold"), *tables)


def _headline(view: Mapping[str, Any]) -> str:
    slots, queue = view["slots"], view["queue"]
    return "  ".join(
        (
            f"{view['node']}: {view['state']}",
            f"slots {slots['used']}/{slots['total']} ({slots['pinned']} pinned)",
            f"window {queue['running']}/{queue['window']}",
            f"waiting {queue['waiting']}",
            f"tenants {view['tenants']['total']}",
            f"adapters {view['versions']['total']}",
            f"restarts {view['restarts']} ({view['hangs']} hangs)",
        )
    )


def _parts(view: Mapping[str, Any]) -> list[_Part]:
    """Tables that have rows."""
    parts = [
        _Part(_NODES, [_node(node) for node in view["nodes"]] if len(view["nodes"]) > 1 else []),
        _Part(_REPLICAS, view.get("replicas", [])),
        _Part(_TIERS, [_tier(tier) for tier in view["tiers"]]),
        _Part(_LOADS, _load_rows(view["load_seconds"])),
        _Part(_TENANTS, [_tenant(queue) for queue in view["tenants"]["data"]]),
        _Part(_VERSIONS, [_version(version) for version in view["versions"]["data"]]),
    ]
    return [part for part in parts if part.rows]


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    ahead = node["clock_ahead_s"]
    warning = ", set both clocks by NTP" if node["clock_apart"] else ""
    return {**node, **_engine(node.get("engine")), "clock": None if ahead is None else f"{ahead:+.1f} s{warning}"}


def _engine(engine: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of a node's engine. A gateway and an earlier release have none."""
    if engine is None:
        return {}
    slots = engine["slots"]
    return {
        "state": engine["state"],
        "slots": f"{slots['used']}/{slots['total']}",
        "running": engine["running"],
        "waiting": engine["waiting"],
        "age": f"{engine['age_s']:.0f} s",
    }


def _tier(tier: Mapping[str, Any]) -> dict[str, Any]:
    rate = tier["hit_rate"]
    sizes = {"used": _size(tier["used_bytes"]), "limit": _size(tier["limit_bytes"])}
    return {**tier, **sizes, "rate": None if rate is None else f"{rate:.1%}"}


def _size(size: Optional[int]) -> Optional[str]:
    return None if size is None else decimal(size)


def _load_rows(loads: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not loads["loads"]:
        return []
    return [
        {"phase": phase, "p50": f"{loads['p50'][phase]:.3f} s", "p99": f"{loads['p99'][phase]:.3f} s"}
        for phase in _PHASES
    ]


def _tenant(queue: Mapping[str, Any]) -> dict[str, Any]:
    return {**queue, "tenant": queue["tenant"] or "(the server)", "counter": f"{queue['counter']:.0f}"}


def _version(version: Mapping[str, Any]) -> dict[str, Any]:
    waited = version["oldest_wait_s"]
    return {**version, "oldest": f"{waited:.1f} s" if waited else None, "size": decimal(version["bytes"])}
