"""Kill a server repeatedly under all kinds of clients, then reconcile its books with the clients' records.

``python -m tests.endurance.accounting`` prints the observations and findings as JSON. The exit code is 1 if a record is
missing or wrong.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy
from rich.console import Console
from rich.progress import Progress

from app.demo.train import Demo, ensure_demo
from tests.endurance.traffic import Seen, Traffic
from tests.support.postgres import running_postgres
from tests.support.server import Server, serving, set_up, until

TENANT, ADAPTERS = "audited", ("pricing", "supply-chain")
#: Fewer concurrent requests than clients, so that some are refused; budgets too high to reach, so that all usage is
#: counted.
LIMITS = {"concurrent_requests": 56, "tokens_per_minute": 10**9, "tokens_per_day": 10**9, "tokens_per_month": 10**9}
#: Tokens left in the budget for the exact check, and tokens of its prompts.
LEFT, PROMPT = 30, 10
SETTINGS: dict[str, Any] = {
    "TENORA_ENGINE__MAX_LORAS": "2",
    "TENORA_ENGINE__MAX_LORA_RANK": "16",
    "TENORA_ENGINE__DTYPE": "float32",
}


@dataclass(frozen=True, slots=True)
class Options:
    """Extent of a run.

    Attributes:
        kills: number of SIGKILLs of the API process, spread evenly over the requests. The engine dies once too, in the
        middle.
    """

    requests: int
    kills: int
    clients: int = 64
    seed: int = 2026


@dataclass(frozen=True, slots=True)
class Books:
    """The registry's records and limits, compared with the clients' observations.

    Attributes:
        missing: request ids of answers that a client read whole and that have no record.
        wrong: request id -> reported tokens and recorded tokens, where these differ.
        records: number of records.
        record_tokens, summed_tokens: tokens of the records, and of the hourly sums.
        budget_exact: whether the month's budget equals the sum of the records, to the token.
        leases_returned: whether the full concurrency limit is available, and not one more.
    """

    missing: list[str]
    wrong: dict[str, Any]
    records: int
    record_tokens: int
    summed_tokens: int
    budget_exact: bool
    leases_returned: bool

    @property
    def right(self) -> bool:
        sums = self.record_tokens == self.summed_tokens
        return not self.missing and not self.wrong and sums and self.budget_exact and self.leases_returned


def run(home: Path, demo: Demo, options: Options, database_url: str | None = None) -> tuple[Seen, Books]:
    """Serve, kill, serve again, and compare.

    Args:
        database_url: default: SQLite in HOME.
    """
    settings: dict[str, Any] = SETTINGS | ({"TENORA_DATABASE_URL": database_url} if database_url else {})
    admin_key = set_up(home, demo.base, **settings)
    traffic, key, clients = None, "", None
    for life in range(options.kills + 1):
        with serving(home, demo.base, admin_key, **settings) as server:
            if traffic is None:
                key = _prepare(server, demo)
                traffic = Traffic(
                    server.url,
                    key,
                    ["", *ADAPTERS],
                    clients=options.clients,
                    requests=options.requests,
                    seed=options.seed,
                )
                clients = threading.Thread(target=asyncio.run, args=(traffic.run(),))
                clients.start()
            traffic.url = server.url
            if life < options.kills:
                _kill(server, traffic.seen, options.requests * (life + 1) // (options.kills + 1), engine=life == 1)
                continue
            clients.join()
            return traffic.seen, _books(server, key, traffic.seen, database_url or f"sqlite:///{home}/tenora.db")
    raise AssertionError("the last life returns")


def _prepare(server: Server, demo: Demo) -> str:
    key = server.tenant(TENANT, scopes=("inference", "usage:read"))
    for adapter in ADAPTERS:
        assert server.publish(TENANT, adapter, demo.adapters[adapter]).status_code == 201
    limit(server, **LIMITS)
    return key


def limit(server: Server, **limits: int) -> None:
    with server.client(server.admin_key) as admin:
        assert admin.patch(f"/admin/tenants/{TENANT}", json={"limits": limits}).status_code == 200


def _kill(server: Server, seen: Seen, after: int, *, engine: bool) -> None:
    if engine:
        until(lambda: seen.sent >= after - (after // 4), 600)
        server.engine_processes()[-1].kill()
        server.wait_restarted()
    until(lambda: seen.sent >= after, 600)
    processes = server.engine_processes()
    server.process.kill()
    server.process.wait()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive, f"engines outlived their server: {alive}"


def _books(server: Server, key: str, seen: Seen, database_url: str) -> Books:
    total = settled_total(server, key)
    engine = sqlalchemy.create_engine(database_url)
    with engine.connect() as connection:
        rows = connection.execute(sqlalchemy.text("select request_id, prompt_tokens, output_tokens from usage")).all()
    engine.dispose()
    written = {row.request_id: (row.prompt_tokens, row.output_tokens) for row in rows}
    told = seen.told
    tokens = sum(map(sum, written.values()))
    return Books(
        missing=[request_id for request_id in told if request_id not in written],
        wrong={
            request_id: {"told": told[request_id], "written": written[request_id]}
            for request_id in told.keys() & written.keys()
            if told[request_id] != written[request_id]
        },
        records=len(written),
        record_tokens=tokens,
        summed_tokens=total["prompt_tokens"] + total["output_tokens"],
        budget_exact=budget_is(server, key, tokens),
        leases_returned=all_may_run(server, key),
    )


def settled_total(server: Server, key: str) -> dict[str, int]:
    """Wait until the tenant's totals are stable for longer than a record takes, and return them."""
    found, since = None, time.monotonic()
    with server.client(key) as client:
        while time.monotonic() - since < 3:
            time.sleep(0.1)
            total: dict[str, int] = client.get("/v1/usage", params={"by": ""}).json()["total"]
            if total != found:
                found, since = total, time.monotonic()
    assert found is not None
    return found


def budget_is(server: Server, key: str, tokens: int, other: Server | None = None) -> bool:
    """Return whether exactly this many tokens of the month are used.

    The rest of the budget is granted, and not one token more.

    Args:
        other: server that gets the requests beyond the rest; default: the same.
    """
    limit(server, tokens_per_month=tokens + LEFT)
    statuses = []
    for most, asked in ((LEFT - PROMPT + 1, other or server), (LEFT - PROMPT, server), (1, other or server)):
        body = {"prompt": [7] * PROMPT, "ignore_eos": True, "max_tokens": most}
        with asked.client(key) as client:
            statuses.append(client.post("/v1/completions", json=body).status_code)
    limit(server, **LIMITS)
    return statuses == [429, 200, 429]


def all_may_run(server: Server, key: str, other: Server | None = None) -> bool:
    """Return whether the allowed number of concurrent streams is admitted together, and one more is not.

    Args:
        other: server that gets every other stream; default: the same.
    """
    most = 4
    limit(server, concurrent_requests=most)
    body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
    with contextlib.ExitStack() as streams:
        clients = [streams.enter_context(one.client(key)) for one in (server, other or server)]
        statuses = [
            streams.enter_context(clients[number % 2].stream("POST", "/v1/completions", json=body)).status_code
            for number in range(most + 1)
        ]
    return statuses == [200] * most + [429]


@contextlib.contextmanager
def _database(kind: str) -> Iterator[str | None]:
    if kind == "sqlite":
        yield None
    else:
        with running_postgres() as url:
            yield url


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance.accounting", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--home", type=Path, default=Path(".tenora/endurance"), help="keeps the demo's models")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    given = parser.parse_args()
    options = Options(given.requests, given.kills, given.clients, given.seed)
    with tempfile.TemporaryDirectory() as folder, _database(given.database) as url:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            demo = ensure_demo(given.home.resolve(), progress)
        seen, books = run(Path(folder), demo, options, url)
    found = {
        "sent": seen.sent,
        "outcomes": dict(seen.outcomes.most_common()),
        "told": len(seen.told),
        "records": books.records,
        "missing": books.missing,
        "wrong": books.wrong,
        "record_tokens": books.record_tokens,
        "summed_tokens": books.summed_tokens,
        "budget_exact": books.budget_exact,
        "leases_returned": books.leases_returned,
    }
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0 if books.right else 1


if __name__ == "__main__":
    sys.exit(main())
