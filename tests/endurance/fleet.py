"""Kill a gateway, an engine, a replica and a node under load, then compare the records with the clients' answers.

Two gateways share one PostgreSQL and two engine replicas, each on a node of Ray. Clients call each gateway, and both of
them through nginx, which sends a request again if its gateway died before the answer began.

``python -m tests.endurance.fleet`` prints the findings as JSON. The exit code is 1 if a request was lost, or a record
is missing, double or wrong.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy

from app.demo.train import Demo, ensure_demo
from tests.endurance.accounting import ADAPTERS, LIMITS, SETTINGS, TENANT, all_may_run, budget_is, limit, settled_total
from tests.endurance.batches import Machine, budget_used
from tests.endurance.fleet_findings import Books, Stream
from tests.endurance.traffic import Traffic
from tests.support.engine_replicas import engine_of, status
from tests.support.nginx import running_nginx
from tests.support.postgres import running_postgres
from tests.support.ray_nodes import Nodes, ray_nodes
from tests.support.server import START_S, TENORA, Server, environment, set_up, together, until

KILLS = ("gateway", "engine", "replica", "node")
RUNNING = "tenora_engine_requests_running"
WHOLE = {"whole": 3, "chat": 1}
_STREAM_TOKENS = 600
#: Streams of a gateway that is killed while they run: more tokens than any machine makes within ``_ENDED_S``.
_ENDLESS: dict[str, Any] = {"prompt": "x", "max_tokens": 2000, "n": 8, "ignore_eos": True, "stream": True}
_ENDLESS_STREAMS, _ENDED_S = 4, 60
_PER_MINUTE = 6
#: Seconds until the leases of a killed gateway have been reclaimed.
_RECLAIMED_S = 150


@dataclass(frozen=True)
class Options:
    """Extent of a run.

    Attributes:
        requests: least number of requests for whole answers.
        streams: number of streams that run at the kills.
        clients: number of clients of each gateway, and of nginx.
    """

    requests: int = 1500
    streams: int = 50
    clients: int = 3
    seed: int = 2026


class Site:
    """Two gateways and two replicas, under load."""

    def __init__(
        self, nodes: Nodes, homes: Sequence[Path], gateways: Sequence[Machine], base: Path, proxy_url: str
    ) -> None:
        self.nodes, self.homes, self.gateways, self.base = nodes, homes, gateways, base
        self.home = gateways[0].server.home
        #: URL of nginx in front of both gateways.
        self.proxy_url = proxy_url

    def replicas(self) -> list[dict[str, Any]]:
        """Wait until both replicas are ready, and return their status."""
        rows: list[dict[str, Any]] = []

        def ready() -> bool:
            rows[:] = status(self.home, self.base, self.nodes.settings)
            return [row["state"] for row in rows] == ["ready"] * len(self.homes)

        until(ready, START_S)
        return rows

    def kill(self, kind: str, replicas: Sequence[dict[str, Any]], chance: random.Random) -> None:
        """Kill one of a kind. A node joins again at once, as a machine that starts again."""
        if kind == "engine":
            engine_of(chance.choice(replicas)["pid"]).kill()
        elif kind == "replica":
            os.kill(chance.choice(replicas)["pid"], signal.SIGKILL)
        elif kind == "node":
            home = chance.choice(self.homes)
            self.nodes.kill(home)
            self.nodes.add(home)
        else:
            self.gateways[1].kill()
            self.gateways[1].start()


def run(folder: Path, demo: Demo, options: Options, database_url: str) -> Books:
    """Serve, kill, and compare."""
    began = time.monotonic()
    homes = [folder / "node-1", folder / "node-2"]
    settings = SETTINGS | together(folder, database_url)
    with ray_nodes(folder / "head", homes, demo.base, settings) as nodes, contextlib.ExitStack() as stack:
        places = [folder / "gateway-1", folder / "gateway-2"]
        for place in places:
            place.mkdir()
        admin_key = set_up(places[0], demo.base, **nodes.settings)
        _up(places[0], demo.base, nodes)
        gateways = [Machine(place, demo.base, admin_key, nodes.settings) for place in places]
        for gateway in gateways:
            gateway.start()
            stack.callback(gateway.stop)
        key = _prepared(gateways[0], demo)
        ports = [httpx.URL(gateway.server.url).port or 0 for gateway in gateways]
        proxy_url = stack.enter_context(running_nginx(folder, ports))
        site = Site(nodes, homes, gateways, demo.base, proxy_url)
        books = Books()
        told = _load(site, key, options, books)
        books.ended_s = _abandon(site, key)
        _compare(site, key, told, database_url, books)
        books.seconds = time.monotonic() - began
        return books


def _up(home: Path, base: Path, nodes: Nodes) -> None:
    command = [TENORA, "engines", "up", "--replicas", "2"]
    done = subprocess.run(
        command, env=environment(home, base, **nodes.settings), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _prepared(gateway: Machine, demo: Demo) -> str:
    server = gateway.server
    key = server.tenant(TENANT, scopes=("inference", "usage:read"))
    for adapter in ADAPTERS:
        assert server.publish(TENANT, adapter, demo.adapters[adapter]).status_code == 201
    limit(server, **LIMITS | {"concurrent_requests": 1000})
    return key


def _load(site: Site, key: str, options: Options, books: Books) -> dict[str, tuple[int, int]]:
    """Run all clients and all kills, and return the tokens that each answer named, by request id."""
    models = ["", *ADAPTERS]
    traffics = [
        Traffic(
            url,
            key,
            models,
            clients=options.clients,
            requests=sys.maxsize,
            seed=options.seed + number,
            manners=WHOLE,
        )
        for number, url in enumerate((*(gateway.server.url for gateway in site.gateways), site.proxy_url))
    ]
    threads = [threading.Thread(target=asyncio.run, args=(traffic.run(),)) for traffic in traffics]
    for thread in threads:
        thread.start()

    def sent() -> int:
        return sum(traffic.seen.sent for traffic in traffics)

    try:
        streams = _kill_all(site, key, models, options, sent, books)
        until(lambda: sent() >= options.requests, 900)
    finally:
        for traffic in traffics:
            traffic.stop()
        for thread in threads:
            thread.join()
    books.sent = sent()
    *books.outcomes, books.proxied = [dict(traffic.seen.outcomes.most_common()) for traffic in traffics]
    for stream in streams:
        name = "error event" if stream.errors else "whole" if stream.end == "done" else "cut"
        ends = books.streams.setdefault(stream.kill, {})
        ends[name] = ends.get(name, 0) + 1
    books.wrong_streams = [stream for stream in streams if not stream.right]
    told = {stream.request_id: stream.told for stream in streams if stream.end == "done"}
    for traffic in traffics:
        told |= traffic.seen.told
    return told


def _kill_all(site: Site, key: str, models: Sequence[str], options: Options, sent: Any, books: Books) -> list[Stream]:
    """Kill one of each kind while streams run, and return the streams at their ends."""
    chance, streams = random.Random(options.seed), []
    urls = [gateway.server.url for gateway in site.gateways]
    killed_at = 0.0
    for number, kind in enumerate(KILLS):
        replicas = site.replicas()
        if number > 1:
            books.recovery_s[KILLS[number - 1]] = time.monotonic() - killed_at
        least = options.requests * number // len(KILLS)
        until(lambda least=least: sent() >= least, 900)
        count = options.streams * (number + 1) // len(KILLS) - options.streams * number // len(KILLS)
        begun = threading.Semaphore(0)
        with ThreadPoolExecutor(count) as pool:
            running = [
                pool.submit(_stream, urls[one % 2], key, models[one % 3], Stream(one % 2, kind), begun)
                for one in range(count)
            ]
            for _ in running:
                begun.acquire()
            killed_at = time.monotonic()
            site.kill(kind, replicas, chance)
            streams += [one.result() for one in running]
    return streams


def _stream(url: str, key: str, model: str, stream: Stream, begun: threading.Semaphore) -> Stream:
    """Read a stream to its end, and signal its first event."""
    body = {"model": model, "prompt": "Tell a story", "max_tokens": _STREAM_TOKENS, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    headers = {"authorization": f"Bearer {key}"}
    waiting = True
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=120) as answer:
            assert answer.status_code == httpx.codes.OK
            stream.request_id = answer.headers["x-request-id"]
            for event in _events(answer):
                if waiting:
                    begun.release()
                    waiting = False
                _note(stream, event)
    except httpx.TransportError:
        stream.end = "cut"
    finally:
        if waiting:
            begun.release()
    return stream


def _note(stream: Stream, event: str) -> None:
    assert stream.end != "done", "an event after the end"
    if event == "[DONE]":
        stream.end = "done"
        return
    content = json.loads(event)
    stream.errors += "error" in content
    if usage := content.get("usage"):
        stream.told = usage["prompt_tokens"], usage["completion_tokens"]


def _events(answer: httpx.Response) -> Iterator[str]:
    """Yield the data of each event. Lines end at newlines only, as text may contain U+0085."""
    rest = ""
    for text in answer.iter_text():
        *lines, rest = (rest + text).split("\n")
        for line in filter(None, lines):
            yield line.removeprefix("data: ")


def _abandon(site: Site, key: str) -> float:
    """Kill a gateway while only its streams run. Return the seconds until they have ended at the replicas."""
    watching, dying = site.gateways
    until(lambda: watching.server.metric(RUNNING) == 0, START_S)
    with contextlib.ExitStack() as streams:
        client = streams.enter_context(dying.server.client(key))
        for number in range(_ENDLESS_STREAMS):
            body = _ENDLESS | {"model": ADAPTERS[number % 2]}
            answer = streams.enter_context(client.stream("POST", "/v1/completions", json=body))
            assert answer.status_code == httpx.codes.OK
        until(lambda: watching.server.metric(RUNNING) >= _ENDLESS_STREAMS, START_S)
        dying.kill()
        began = time.monotonic()
        until(lambda: watching.server.metric(RUNNING) == 0, _ENDED_S)
        ended_s = time.monotonic() - began
    dying.start()
    return ended_s


def _compare(site: Site, key: str, told: dict[str, tuple[int, int]], database_url: str, books: Books) -> None:
    first, second = (gateway.server for gateway in site.gateways)
    total = settled_total(first, key)
    engine = sqlalchemy.create_engine(database_url)
    with engine.connect() as connection:
        rows = connection.execute(sqlalchemy.text("select request_id, prompt_tokens, output_tokens from usage")).all()
    engine.dispose()
    recorded = {row.request_id: (row.prompt_tokens, row.output_tokens) for row in rows}
    counts = Counter(row.request_id for row in rows)
    books.told, books.records = len(told), len(rows)
    books.missing = [request_id for request_id in told if request_id not in recorded]
    books.double = [request_id for request_id, count in counts.items() if count > 1]
    books.wrong = {
        request_id: {"told": tokens, "recorded": recorded[request_id]}
        for request_id, tokens in told.items()
        if request_id in recorded and recorded[request_id] != tokens
    }
    tokens = sum(map(sum, recorded.values()))
    if tokens != total["prompt_tokens"] + total["output_tokens"]:
        books.wrong["total"] = {"recorded": tokens, "total": total}
    used = budget_used(first, key, tokens)
    books.budget_exact = used == tokens and budget_is(first, key, tokens, second)
    with contextlib.suppress(TimeoutError):
        until(lambda: all_may_run(first, key, second), _RECLAIMED_S)
        books.leases_returned = True
    books.rate_exact = _rate_is_exact(first, second)


def _rate_is_exact(first: Server, second: Server) -> bool:
    """Return whether both gateways together grant a new tenant its requests of a minute, and not one more."""
    key = first.tenant("limited", scopes=("inference",))
    with first.client(first.admin_key) as admin:
        body = {"limits": {"requests_per_minute": _PER_MINUTE}}
        assert admin.patch("/admin/tenants/limited", json=body).status_code == httpx.codes.OK
    statuses = []
    for number in range(_PER_MINUTE + 4):
        with (first, second)[number % 2].client(key) as client:
            answer = client.post("/v1/completions", json={"prompt": [7], "max_tokens": 1})
        statuses.append(answer.status_code)
    return statuses == [200] * _PER_MINUTE + [429] * 4


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance.fleet", description=__doc__)
    parser.add_argument("--requests", type=int, default=Options.requests)
    parser.add_argument("--streams", type=int, default=Options.streams)
    parser.add_argument("--clients", type=int, default=Options.clients)
    parser.add_argument("--seed", type=int, default=Options.seed)
    arguments = parser.parse_args()
    options = Options(arguments.requests, arguments.streams, arguments.clients, arguments.seed)
    demo = ensure_demo(Path(".pytest_cache").resolve() / "demo-home", progress=None)
    with tempfile.TemporaryDirectory() as folder, running_postgres() as url:
        books = run(Path(folder), demo, options, url)
    sys.stdout.write(json.dumps(asdict(books) | {"lost": books.lost, "right": books.right}, indent=1) + "\n")
    return 0 if books.right else 1


if __name__ == "__main__":
    sys.exit(main())
