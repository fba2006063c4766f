"""Workload ``overhead``: overhead of Tenora over vLLM's own server, with the same engine arguments and weights.

It runs a closed loop of completions with one warm adapter, streamed and not. Both servers are started fresh and stay
up, since an idle engine uses no CPU. The rounds alternate between them, so that a machine that slows down slows both.
"""

import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from app.demo.train import ensure_demo
from app.lab.bench import client, models, report, rivals
from app.lab.bench.client import Plan, Samples
from app.lab.bench.servers import Server
from app.lab.bench.wire import LoadError

ADAPTER = "pricing"
INPUT_TOKENS, OUTPUT_TOKENS = 64, 32
SEED = 2024
SLOTS = 4

_SETTINGS = {"TENORA_ENGINE__MAX_LORAS": str(SLOTS)}
#: Rank of the adapter that is created for a given base.
_RANK = 16


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the measurement.

    Attributes:
        rounds: rounds per server, concurrency and kind of answer.
        requests: requests of one round by concurrency.
    """

    rounds: int
    requests: Mapping[int, int]


FULL = Size(5, {1: 30, 16: 160, 64: 256})
QUICK = Size(1, {1: 10, 16: 48, 64: 96})


@dataclass(frozen=True, slots=True)
class Round:
    """One round against one server, with its raw samples."""

    server: str
    concurrency: int
    streamed: bool
    number: int
    metrics: dict[str, float]
    api_cpu_s: float
    samples: Samples


def run(home: Path, *, out: Path | None, quick: bool, console: Console, base: Path | None = None) -> Path:
    """Run the benchmark, print its tables to stdout and write a JSON file.

    Args:
        home: folder that keeps the demo's models between runs. Everything else in it is recreated.
        console: console for progress.
        base: folder of another base than the demo's, served in its stored dtype with an adapter of random values.

    Returns:
        Path of the JSON file.

    Raises:
        ServerFailed, LoadError
    """
    size = QUICK if quick else FULL
    home = home.resolve()  # the servers run in another folder
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    base, adapter, settings = prepare(home, base, console)
    arguments = rivals.vllm_arguments(base, slots=SLOTS, host_adapters=SLOTS, settings=settings)
    adapters = {ADAPTER: adapter}
    with tempfile.TemporaryDirectory(dir=home) as folder, ExitStack() as stack:
        console.print("starting both servers")
        ours = stack.enter_context(
            rivals.tenora(base, adapters, home=home, folder=Path(folder) / "tenora", settings=settings)
        )
        theirs = stack.enter_context(rivals.vllm(base, adapters, arguments=arguments, folder=Path(folder) / "vllm"))
        rounds = measure((ours, theirs), size, models.vocabulary(base), console)
    machine = report.environment()
    content = {
        "workload": "overhead",
        **machine,
        **described(size, settings),
        "vllm": {"serve": f"python -m {rivals.VLLM_MODULE}", "arguments": arguments},
        "rounds": [asdict(r) for r in rounds],
    }
    path = out or home / f"overhead-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    report.write(path, content)
    show(rounds, size, report.describe(machine))
    return path


def prepare(home: Path, base: Path | None, console: Console) -> tuple[Path, Path, Mapping[str, str]]:
    """Return the base, the adapter and the server settings, by default those of the demo."""
    return _given(home, base) if base else _demo(home, console)


def _demo(home: Path, console: Console) -> tuple[Path, Path, Mapping[str, str]]:
    with Progress(console=console, transient=True) as progress:
        demo = ensure_demo(home, progress)
    return demo.base, demo.adapters[ADAPTER], _SETTINGS | {"TENORA_ENGINE__DTYPE": models.served_dtype()}


def _given(home: Path, base: Path) -> tuple[Path, Path, Mapping[str, str]]:
    base = base.resolve()
    return base, models.adapters(home, base, 1, (_RANK,), SEED)[0], _SETTINGS


def measure(pair: Sequence[Server], size: Size, tokens: int, console: Console) -> list[Round]:
    """Run every round, alternating between the servers.

    Args:
        tokens: vocabulary size.

    Raises:
        LoadError: a request failed.
    """
    prompts = _Prompts(tokens)
    rounds: list[Round] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=2 * len(size.requests) * (size.rounds + 1) * len(pair))
        for concurrency, requests in size.requests.items():
            for streamed in (True, False):
                for server in pair:
                    # Warm-up round, not recorded.
                    _load(server, prompts.take(2 * concurrency), concurrency, streamed=streamed)
                    progress.advance(task)
                for number in range(1, size.rounds + 1):
                    batch = prompts.take(requests)
                    for server in pair:
                        rounds.append(_round(server, batch, concurrency, number, streamed=streamed))
                        progress.advance(task)
    return rounds


class _Prompts:
    """Random token ids. A repeated prompt would measure the prefix cache."""

    def __init__(self, tokens: int) -> None:
        self._random = random.Random(SEED)  # noqa: S311 - a benchmark wants the same numbers every time
        self._tokens = tokens

    def take(self, count: int) -> list[list[int]]:
        return [[self._random.randrange(self._tokens) for _ in range(INPUT_TOKENS)] for _ in range(count)]


def _round(server: Server, prompts: list[list[int]], concurrency: int, number: int, *, streamed: bool) -> Round:
    before = server.cpu_s()
    samples = _load(server, prompts, concurrency, streamed=streamed)
    cpu_s = server.cpu_s() - before
    return Round(server.name, concurrency, streamed, number, report.measure(samples, cpu_s), cpu_s, samples)


def _load(server: Server, prompts: list[list[int]], concurrency: int, *, streamed: bool) -> Samples:
    plan = Plan(
        host="127.0.0.1",
        port=server.port,
        path="/v1/completions",
        headers=server.headers_for(ADAPTER),
        model=server.model_for(ADAPTER),
        prompts=prompts,
        concurrency=concurrency,
        output_tokens=OUTPUT_TOKENS,
        stream=streamed,
    )
    try:
        return client.drive(plan)
    except LoadError as error:
        raise LoadError(f"{server.name} at concurrency {concurrency}: {error}") from None


def described(size: Size, settings: Mapping[str, str]) -> dict[str, Any]:
    """Options of the measurement, for the JSON file."""
    return {
        "rounds_per_server": size.rounds,
        "requests_per_round": dict(size.requests),
        "input_tokens": INPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "seed": SEED,
        "tenora": {"serve": "tenora server serve", "settings": settings},
    }


def show(rounds: Sequence[Round], size: Size, machine: str) -> None:
    """Print a table for each concurrency and kind of answer, with ratios of the first server to the second."""
    first, second = dict.fromkeys(one.server for one in rounds)
    # A pipe has no width, and the tables need this one.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(f"{machine}\none adapter, {INPUT_TOKENS} tokens in, {OUTPUT_TOKENS} out, greedy", soft_wrap=True)
    console.print(f"medians of {size.rounds} (smallest to largest), ratios of medians")
    for concurrency in size.requests:
        for streamed in (True, False):
            ours, theirs = (
                report.summarise(
                    [
                        r.metrics
                        for r in rounds
                        if (r.server, r.concurrency, r.streamed) == (name, concurrency, streamed)
                    ]
                )
                for name in (first, second)
            )
            title = f"concurrency {concurrency}, {'streamed' if streamed else 'not streamed'}"
            console.print(report.table(title, ours, theirs, (first, second)))
