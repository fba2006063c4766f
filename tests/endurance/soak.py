"""Soak test: hours of traffic at 80 % of a server's capacity, with churn of adapters, keys and clients.

``python -m tests.endurance.soak --minutes 60 --out soak`` writes ``soak.json`` and ``soak.png``. It prints the
resources that grew after the first ten minutes. The exit code is 1 if any did.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import Progress

from app.demo.train import Demo, ensure_demo
from app.lab.bench import report
from app.lab.bench.plots import Panel, Series, draw
from tests.endurance.accounting import ADAPTERS, SETTINGS, TENANT
from tests.endurance.traffic import Traffic
from tests.support.scaled_adapters import scaled
from tests.support.server import Server, every_step_size, running

_CLIENTS, _SHARE = 32, 0.8
_CAPACITY_S, _SAMPLE_S, _CHURN_S = 60, 10, 10
#: Seconds of rest before a measurement: by then the server has noticed abandoned requests and closed idle connections.
_REST_S = 20
#: Tolerated growth of a series since the warm-up, as a fraction of its size.
_TOLERANCE = 0.02
_SERIES: Mapping[str, str] = {
    "api_mib": "memory of the API process, MiB",
    "engine_mib": "memory of the engine, MiB",
    "handles": "open files and sockets, all processes",
    "tasks": "tasks in the event loop",
    "leased": "requests that hold a place in the engine",
}
#: Judged under load, by the medians of the first quarter after the warm-up and the last. All other series vary with the
#: requests in flight, so they are judged at idle, after the warm-up and at the end.
_UNDER_LOAD = ("api_mib", "engine_mib")
_METRICS = {"tasks": "tenora_process_tasks", "leased": "tenora_engine_window_used"}


class Churn:
    """Churn: adapters are published, moved and deleted, and keys are rotated, again and again."""

    def __init__(self, server: Server, demo: Demo, traffic: Traffic, folder: Path) -> None:
        self._server, self._source, self._traffic = server, demo.adapters[ADAPTERS[0]], traffic
        self._folder, self.turns = folder, 0

    def turn(self) -> None:
        """Publish a new version and delete the one before last; give all clients a new key and revoke the old one."""
        self.turns += 1
        tenant = f"/admin/tenants/{TENANT}"
        # The bytes differ each time, since equal bytes would be deduplicated to the existing version.
        made = scaled(self._source, self._folder / str(self.turns), 1 - self.turns / 10_000)
        version = self._server.publish(TENANT, ADAPTERS[0], made)
        shutil.rmtree(made)
        assert version.status_code == 201, version.text
        old = int(version.json()["version"]) - 2
        with self._server.client(self._server.admin_key) as admin:
            if old > 0:
                gone = admin.delete(f"{tenant}/adapters/{ADAPTERS[0]}/versions/{old}", params={"force": "true"})
                assert gone.status_code == 202, gone.text
            before = self._traffic.key
            self._traffic.key = self._server.tenant(TENANT, scopes=("inference",))
            # Requests sent with the old key are still in flight.
            time.sleep(1)
            revoked = admin.delete(f"{tenant}/keys/{before.split('_')[1]}")
            assert revoked.is_success, revoked.text


def measure(server: Server) -> dict[str, float]:
    """Take one sample of everything that could grow."""
    api, (engine,) = psutil.Process(server.process.pid), server.engine_processes()
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
    return {
        "api_mib": api.memory_info().rss / 2**20,
        "engine_mib": engine.memory_info().rss / 2**20,
        "handles": float(sum(process.num_fds() for process in (api, engine))),
        **{name: values[metric] for name, metric in _METRICS.items()},
    }


def run(
    server: Server, demo: Demo, warm_up: float, minutes: float, folder: Path, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Find the capacity, then serve 80 % of it and sample.

    The traffic pauses twice, after the warm-up and at the end.
    """
    key = server.tenant(TENANT, scopes=("inference",))
    for adapter in ADAPTERS:
        assert server.publish(TENANT, adapter, demo.adapters[adapter]).status_code == 201
    every_step_size(server, key, ADAPTERS[0])
    capacity = _capacity(server, key)
    tell(f"{capacity:.1f} requests/s in a closed loop of {_CLIENTS}")
    traffic = _traffic(server, key)
    churn = Churn(server, demo, traffic, folder)
    samples: list[dict[str, float]] = []
    at_rest: list[dict[str, float]] = []
    began = time.monotonic()
    for end in (warm_up, minutes):
        with _arriving(traffic, _SHARE * capacity) as asking:
            _sample(server, churn, began, began + 60 * end, samples, asking)
        time.sleep(_REST_S)
        at_rest.append(measure(server))
        tell(json.dumps(at_rest[-1]))
    return {
        "capacity_per_s": capacity,
        "offered_per_s": _SHARE * capacity,
        "sent": traffic.seen.sent,
        "outcomes": dict(traffic.seen.outcomes),
        "churned": churn.turns,
        "samples": samples,
        "at_rest": at_rest,
    }


@contextmanager
def _arriving(traffic: Traffic, rate: float) -> Iterator["Future[None]"]:
    """Run clients that arrive at this rate while the context lasts, then wait for them."""
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(lambda: asyncio.run(traffic.arrive(rate)))
        try:
            yield asking
        finally:
            traffic.stop()
    asking.result()


def _sample(
    server: Server, churn: Churn, began: float, end: float, samples: list[dict[str, float]], asking: "Future[None]"
) -> None:
    churned = time.monotonic()
    while (now := time.monotonic()) < end:
        # Nothing grows without requests.
        if asking.done():
            asking.result()
        samples.append({"minute": (now - began) / 60, **measure(server)})
        if now > churned + _CHURN_S:
            churned = now
            churn.turn()
        time.sleep(max(0.0, now + _SAMPLE_S - time.monotonic()))


def _traffic(server: Server, key: str) -> Traffic:
    return Traffic(server.url, key, ["", *ADAPTERS], clients=_CLIENTS, requests=10**9, seed=7)


def _capacity(server: Server, key: str) -> float:
    traffic = _traffic(server, key)
    timer = threading.Timer(_CAPACITY_S, traffic.stop)
    timer.start()
    began = time.monotonic()
    asyncio.run(traffic.run())
    timer.join()
    return traffic.seen.sent / (time.monotonic() - began)


def growth(
    samples: list[dict[str, float]], at_rest: list[dict[str, float]], warm_up: float
) -> dict[str, dict[str, float]]:
    """Return each series after the warm-up (minutes) and at the end, and its growth."""
    after = [sample for sample in samples if sample["minute"] >= warm_up]
    quarter = max(1, len(after) // 4)
    found = {}
    for name in _SERIES:
        parts = (after[:quarter], after[-quarter:]) if name in _UNDER_LOAD else ([at_rest[0]], [at_rest[-1]])
        first, last = (statistics.median(one[name] for one in part) for part in parts)
        found[name] = {"first": first, "last": last, "growth": last - first}
    return found


def has_grown(found: Mapping[str, float]) -> bool:
    return found["growth"] > _TOLERANCE * max(found["first"], 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--warm-up", type=float, default=10, help="minutes that do not count")
    parser.add_argument("--out", type=Path, default=Path(".tenora/endurance/soak"))
    parser.add_argument("--home", type=Path, default=Path(".tenora/endurance"), help="keeps the demo's models")
    given = parser.parse_args()
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as progress:
        demo = ensure_demo(given.home.resolve(), progress)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), demo.base, **SETTINGS) as server:
        found = run(server, demo, given.warm_up, given.minutes, Path(folder), console.print)
    grown = growth(found["samples"], found["at_rest"], given.warm_up)
    content = {"workload": "soak", **report.environment(), "minutes": given.minutes, **found, "growth": grown}
    report.write(given.out.with_suffix(".json"), content)
    x = [sample["minute"] for sample in found["samples"]]
    panels = [
        Panel(label, "minutes", label, [Series("tenora", x, [one[name] for one in found["samples"]])])
        for name, label in _SERIES.items()
    ]
    draw(given.out.with_suffix(".png"), f"{found['offered_per_s']:.0f} requests/s, {found['churned']} turns", panels)
    shown = {name: value for name, value in found.items() if name != "samples"} | {"growth": grown}
    sys.stdout.write(json.dumps(shown, indent=1) + "\n")
    held = any(rest["leased"] > 0 for rest in found["at_rest"])
    return int(held or any(map(has_grown, grown.values())))


if __name__ == "__main__":
    sys.exit(main())
