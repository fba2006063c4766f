"""Checks that a server's adapters are cold, and its metrics of loading them."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from app.lab.bench.servers import Server
from app.lab.bench.timeline import NotMeasured

_TIMEOUT_S = 30
_LOADS = "tenora_load_seconds"
_SHOWN = 1000


def drop_from_page_cache(folders: Iterable[Path]) -> None:
    """Drop the files below these folders from the page cache. Mapped pages stay."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    os.fdatasync(file.fileno())  # dirty pages are not dropped
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def require_cold(server: Server, adapters: Iterable[str]) -> None:
    """Check that Tenora has none of these adapters in host memory or in a slot. Other servers are not checked.

    Raises:
        NotMeasured: some adapters are warm. The message names them with their tiers.
    """
    if not server.admin_headers:
        return
    tiers = _tiers(server)
    wrong = {name: tiers[name] for name in adapters if tiers.get(name, "disk") != "disk"}
    if wrong:
        raise NotMeasured(f"Some adapters are not on the disk only: {wrong}.")


def in_slots(server: Server, adapters: Iterable[str]) -> list[str]:
    """Return the adapters that Tenora has in a slot. For other servers, return all of them."""
    tiers = _tiers(server) if server.admin_headers else dict.fromkeys(adapters, "slot")
    return [name for name in adapters if tiers.get(name) == "slot"]


def _tiers(server: Server) -> dict[str, str]:
    """Tier of each adapter by name."""
    answer = httpx.get(
        f"{server.url}/admin/engine",
        params={"limit": _SHOWN},
        headers=server.admin_headers,
        timeout=_TIMEOUT_S,
        trust_env=False,
    )
    return {
        row["name"].partition("/")[2].partition("@")[0]: row["tier"]
        for row in answer.raise_for_status().json()["versions"]["data"]
    }


def load_totals(server: Server) -> dict[str, tuple[float, float]]:
    """Total seconds and number of loads by phase. Empty if the server does not export them."""
    answer = httpx.get(f"{server.url}/metrics", headers=server.admin_headers, timeout=_TIMEOUT_S, trust_env=False)
    text = answer.raise_for_status().text
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            if name == f"{_LOADS}_sum":
                sums[labels["phase"]] = value
            elif name == f"{_LOADS}_count":
                counts[labels["phase"]] = value
    return {phase: (seconds, counts[phase]) for phase, seconds in sums.items()}


def mean_ms(before: Mapping[str, tuple[float, float]], after: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Mean milliseconds per load by phase, for the loads between two readings."""
    means: dict[str, float] = {}
    for phase, (seconds, loads) in after.items():
        earlier_s, earlier = before.get(phase, (0.0, 0.0))
        if loads > earlier:
            means[phase] = 1000 * (seconds - earlier_s) / (loads - earlier)
    return means
