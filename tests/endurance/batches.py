"""Kill servers, engines or replicas while they run a batch, then compare its output with usage, sums and budgets.

``python -m tests.endurance.batches`` prints the findings as JSON. The exit code is 1 if a line is missing or double, or
a sum differs by a token.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy

from app.demo.train import Demo, ensure_demo
from tests.support import batch_client
from tests.support.batch_client import FINAL, SCOPES
from tests.support.engine_replicas import replicas, states, status
from tests.support.postgres import running_postgres
from tests.support.scaled_adapters import scaled
from tests.support.server import START_S, Server, free_port, serving, set_up, together, until

TENANT = "scoring"
#: Budgets too high to reach, so that every line is counted, on accounts that servers share too.
LIMITS = {"tokens_per_day": 10**9, "tokens_per_month": 10**9}
SETTINGS: dict[str, Any] = {
    "TENORA_ENGINE__MAX_LORAS": "4",
    "TENORA_ENGINE__MAX_LORA_RANK": "16",
    "TENORA_ENGINE__DTYPE": "float32",
    # Another server takes over soon, while the killed one starts again.
    "TENORA_BATCH__NODE_LOST_S": "5",
}
#: Seconds until reservations of killed servers have been reclaimed.
_RECLAIMED_S = 150


@dataclass(frozen=True, slots=True)
class Options:
    """Extent of a run.

    Attributes:
        kills: number of SIGKILLs of API processes, at random times of the batch.
        engine_kills: number of SIGKILLs of engines.
        servers: number of servers on one registry.
        replica_kills: number of SIGKILLs of engine replicas. The servers have two replicas instead of engines.
    """

    lines: int
    adapters: int
    kills: int
    engine_kills: int
    servers: int = 1
    replica_kills: int = 0
    seed: int = 2026


@dataclass(slots=True)
class Books:
    """Contents of the batch's files, of the records and of the limits.

    Attributes:
        missing, double: ids of lines without a result, and with several.
        misplaced: whether the output is not in the order of the input.
        wrong_version: ids of lines that another version answered.
        state: final state of the batch.
        said: prompt and output tokens of the answers in the output file.
        recorded: those of the usage records of lines; ``hours``: of the hourly totals; ``batch``: of the batch.
        budget: tokens that count against the day's budget.
        without_record, without_answer: request ids in only one of the output and the records.
    """

    state: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    double: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    misplaced: bool = False
    wrong_version: list[str] = field(default_factory=list)
    said: tuple[int, int] = (0, 0)
    recorded: tuple[int, int] = (0, 0)
    hours: tuple[int, int] = (0, 0)
    batch: tuple[int, int] = (0, 0)
    budget: int = 0
    different: list[str] = field(default_factory=list)
    leftovers: dict[str, int] = field(default_factory=dict)
    kills: int = 0
    engine_kills: int = 0
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        faults = self.missing or self.double or self.failed or self.wrong_version or self.different or self.misplaced
        equal = self.said == self.recorded == self.hours == self.batch
        return self.state == "completed" and not faults and equal and self.budget == sum(self.said)


class Machine:
    """A server that is killed and started again on one HOME and one port."""

    def __init__(self, home: Path, base: Path, admin_key: str, settings: dict[str, Any]) -> None:
        self._home, self._base, self._admin_key, self._settings = home, base, admin_key, settings
        self._port, self._stack = free_port(), contextlib.ExitStack()
        self.server: Server

    def start(self) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        context = serving(self._home, self._base, self._admin_key, port=self._port, **self._settings)
        self.server = self._stack.enter_context(context)

    def kill(self) -> None:
        """Kill the API process; its engine must end with it."""
        engines = self.server.engine_processes()
        self.server.process.kill()
        self._stack.close()
        _, alive = psutil.wait_procs(engines, timeout=60)
        assert not alive, f"engines outlived their server: {alive}"

    def kill_engine(self) -> None:
        if engines := self.server.engine_processes():
            engines[-1].kill()

    def kill_replica(self) -> None:
        """Kill an engine replica of the servers, once all of them are ready."""
        home, base, settings = self.server.home, self._base, self._settings
        until(lambda: set(states(home, base, settings)) == {"ready"}, START_S)
        os.kill(status(home, base, settings)[-1]["pid"], signal.SIGKILL)

    def stop(self) -> None:
        self._stack.close()


def run(folder: Path, demo: Demo, options: Options, database_url: str | None = None) -> Books:
    """Run a batch under kills, and compare.

    Args:
        database_url: default: SQLite in HOME, for one server.
    """
    settings = dict(SETTINGS) | (together(folder, database_url) if database_url else {})
    homes = [folder / f"server-{number}" for number in range(options.servers)]
    homes[0].mkdir(parents=True)
    admin_key = set_up(homes[0], demo.base, **settings)
    with contextlib.ExitStack() as stack:
        if options.replica_kills:
            settings |= {"TENORA_RAY__ADDRESS": "local"}
            stack.enter_context(replicas(homes[0], demo.base, settings))
        machines = [Machine(home, demo.base, admin_key, settings) for home in homes]
        for machine in machines:
            machine.start()
            stack.callback(machine.stop)
        key, names = _published(machines[0].server, demo, folder, options)
        lines = _lines(names, options)
        began = time.monotonic()
        batch_id = _created(machines[0].server, key, lines)
        _kill_until_done(machines, key, batch_id, options)
        books = _books(machines[0].server, key, batch_id, lines, database_url or f"sqlite:///{homes[0]}/tenora.db")
        books.kills, books.engine_kills = options.kills, options.engine_kills
        books.seconds = time.monotonic() - began
        return books


def _published(server: Server, demo: Demo, folder: Path, options: Options) -> tuple[str, list[str]]:
    key = server.tenant(TENANT, scopes=SCOPES)
    with server.client(server.admin_key) as admin:
        assert admin.patch(f"/admin/tenants/{TENANT}", json={"limits": LIMITS}).status_code == 200
    sources = list(demo.adapters.values())
    names = [f"adapter-{number}" for number in range(options.adapters)]
    for number, name in enumerate(names):
        directory = scaled(sources[number % len(sources)], folder / "adapters" / name, 1 + number / 100)
        answer = server.publish(TENANT, name, directory)
        assert answer.status_code == 201, answer.text
    return key, names


def _lines(names: Sequence[str], options: Options) -> list[dict[str, Any]]:
    chance = random.Random(options.seed)
    return [
        batch_client.line(
            f"row {number}",
            {
                "model": chance.choice([*names, "demo"]),
                "prompt": [chance.randrange(10, 200) for _ in range(chance.randrange(3, 40))],
                "max_tokens": chance.randrange(1, 40),
                "temperature": 0,
            },
        )
        for number in range(options.lines)
    ]


def _created(server: Server, key: str, lines: Sequence[dict[str, Any]]) -> str:
    with server.client(key) as client:
        return batch_client.create(client, lines)


def _kill_until_done(machines: Sequence[Machine], key: str, batch_id: str, options: Options) -> None:
    """Kill servers and engines, each at a random number of finished lines; return when the batch has ended."""
    chance = random.Random(options.seed)
    faults = ["server"] * options.kills + ["engine"] * options.engine_kills + ["replica"] * options.replica_kills
    chance.shuffle(faults)
    last = 0
    for number, fault in enumerate(faults):
        share = options.lines / (len(faults) + 1)
        last = max(last, round(share * number + chance.uniform(0, share)))
        until(lambda least=last: _finished(machines, key, batch_id) >= least, 900)
        machine = chance.choice(machines)
        if fault == "engine":
            machine.kill_engine()
        elif fault == "replica":
            machine.kill_replica()
        else:
            machine.kill()
            machine.start()
    for machine in machines:
        machine.server.wait_ready()
    until(lambda: _batch(machines, key, batch_id).get("status") in FINAL, 900)


def _batch(machines: Sequence[Machine], key: str, batch_id: str) -> dict[str, Any]:
    for machine in machines:
        with contextlib.suppress(httpx.TransportError), machine.server.client(key) as client:
            answer = client.get(f"/v1/batches/{batch_id}")
            if answer.status_code == 200:
                return dict(answer.json())
    return {}


def _finished(machines: Sequence[Machine], key: str, batch_id: str) -> int:
    batch = _batch(machines, key, batch_id)
    if batch.get("status") in FINAL:
        return sys.maxsize
    counts = batch.get("request_counts") or {"completed": 0, "failed": 0}
    return int(counts["completed"] + counts["failed"])


def _books(server: Server, key: str, batch_id: str, lines: Sequence[dict[str, Any]], database_url: str) -> Books:
    with server.client(key) as client:
        batch = client.get(f"/v1/batches/{batch_id}").json()
        output = batch_client.content(client, batch["output_file_id"])
        errors = batch_client.content(client, batch["error_file_id"])
    books = Books(state=batch["status"], counts=batch["request_counts"])
    ids = [line["custom_id"] for line in lines]
    seen = Counter(entry["custom_id"] for entry in (*output, *errors))
    books.missing = [identity for identity in ids if not seen[identity]]
    books.double = [identity for identity, count in seen.items() if count > 1]
    books.failed = [f"{entry['custom_id']}: {entry['error']}" for entry in errors]
    places = {identity: number for number, identity in enumerate(ids)}
    order = [places[entry["custom_id"]] for entry in output]
    books.misplaced = order != sorted(order)
    models = {line["custom_id"]: line["body"]["model"] for line in lines}
    books.wrong_version = [
        entry["custom_id"]
        for entry in output
        if entry["tenora"]["version"]
        != (None if models[entry["custom_id"]] == "demo" else f"{models[entry['custom_id']]}@1")
    ]
    said = {entry["response"]["request_id"]: _tokens(entry["response"]["body"]["usage"]) for entry in output}
    books.said = _sum(said.values())
    usage = batch["usage"]
    books.batch = usage["input_tokens"], usage["output_tokens"]
    engine = sqlalchemy.create_engine(database_url)
    try:
        with engine.connect() as connection:
            records = _rows(connection, "select request_id, prompt_tokens, output_tokens from usage")
            hours = _rows(connection, "select hour, prompt_tokens, output_tokens from usage_hours")
            for table in ("batch_results", "batch_chunks"):
                books.leftovers[table] = len(_rows(connection, f"select batch_id from {table}"))  # noqa: S608
    finally:
        engine.dispose()
    recorded = {row[0]: (row[1], row[2]) for row in records if row[0].startswith("batch-")}
    books.recorded = _sum(recorded.values())
    books.hours = _sum((row[1], row[2]) for row in hours)
    books.different = [name for name in said.keys() | recorded.keys() if said.get(name) != recorded.get(name)]
    books.budget = budget_used(server, key, sum(books.said))
    return books


def budget_used(server: Server, key: str, expected: int) -> int:
    """Return the tokens that count against the day's budget, once killed servers' reservations are reclaimed."""

    def used() -> int:
        with server.client(key) as client:
            limits = client.get("/v1/limits").json()["tenant"]
        return next(int(limit["used"]) for limit in limits if limit["limit"] == "tokens_per_month")

    with contextlib.suppress(TimeoutError):
        until(lambda: used() == expected, _RECLAIMED_S)
    return used()


def _rows(connection: sqlalchemy.Connection, statement: str) -> Sequence[Any]:
    return connection.execute(sqlalchemy.text(statement)).all()


def _tokens(usage: dict[str, int]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]


def _sum(pairs: Any) -> tuple[int, int]:
    prompt = output = 0
    for more_prompt, more_output in pairs:
        prompt, output = prompt + more_prompt, output + more_output
    return prompt, output


@contextlib.contextmanager
def _database(kind: str) -> Iterator[str | None]:
    if kind == "sqlite":
        yield None
        return
    with running_postgres() as url:
        yield url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--adapters", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--engine-kills", type=int, default=3)
    parser.add_argument("--replica-kills", type=int, default=0, help="kills of engine replicas; more than 0 uses two")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--seed", type=int, default=2026)
    arguments = parser.parse_args()
    options = Options(
        arguments.lines,
        arguments.adapters,
        arguments.kills,
        arguments.engine_kills,
        servers=1 if arguments.database == "sqlite" else 2,
        replica_kills=arguments.replica_kills,
        seed=arguments.seed,
    )
    demo = ensure_demo(Path(".pytest_cache") / "demo-home", progress=None)
    with tempfile.TemporaryDirectory() as folder, _database(arguments.database) as url:
        books = run(Path(folder), demo, options, url)
    sys.stdout.write(json.dumps(asdict(books) | {"right": books.right}, indent=2) + "\n")
    sys.exit(not books.right)


if __name__ == "__main__":
    main()
