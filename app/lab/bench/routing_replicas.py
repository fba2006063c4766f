"""Workload ``routing`` on real replicas: share of requests that wait for no load, by routing rule.

Closed loops of requests for random adapters, uniform or by Zipf's law, on more adapters than slots. All rules get the
same requests on the same replicas, each through a fresh server. The first requests of a run only fill the slots.
"""

import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from app.lab.bench import models, open_loop, plots, replicas, report
from app.lab.bench.fleet import shown_engine
from app.lab.bench.open_loop import Plan, Request, Sample
from app.lab.bench.plots import Panel, Series
from app.lab.bench.report import Metric
from app.lab.bench.routing import Measured, summaries
from app.lab.bench.servers import Server
from app.lab.bench.wire import LoadError

OURS, RANDOM = "tenora", "random"
POLICIES = (OURS, RANDOM, "power of two")
TRACES = ("uniform", "zipf")
METRICS: Mapping[str, Metric] = {
    "warm": Metric("requests without a load", 3),
    "ttft_p50_s": Metric("TTFT p50, s", 3),
    "ttft_p99_s": Metric("TTFT p99, s", 3),
    "requests_per_s": Metric("requests/s", 2),
}
PART = "replicas"
PROMPT_TOKENS, RANK = 32, 8
_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Options:
    """Fleet and load.

    Attributes:
        requests: measured requests of each rule, trace and round.
        filling: requests before them.
        clients: requests in flight.
        output_tokens: tokens of each answer.
    """

    replicas: int = 2
    slots: int = 4
    adapters: int = 16
    requests: int = 400
    filling: int = 100
    clients: int = 8
    output_tokens: int = 16
    rounds: int = 3
    seed: int = 2026
    policies: tuple[str, ...] = POLICIES
    traces: tuple[str, ...] = TRACES

    def quick(self) -> "Options":
        """Reduce to a smoke test, which is not a result."""
        return replace(self, requests=40, filling=20, rounds=1)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "TENORA_ENGINE__MAX_LORAS": str(self.slots),
            "TENORA_ENGINE__MAX_LORA_RANK": str(RANK),
            "TENORA_ENGINE__DTYPE": models.served_dtype(),
        }


def run(home: Path, options: Options, *, out: Path | None, console: Console) -> Path:
    """Run the benchmark, print its tables to stdout and write a JSON file with a PNG next to it.

    Args:
        home: folder that keeps models and published adapters between runs.
        console: console for progress.

    Returns:
        Path of the JSON file.

    Raises:
        app.domain.errors.EngineUnavailable: Ray is not installed.
        ServerFailed, LoadError
    """
    home = home.resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = out or home / f"routing-replicas-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    machine = report.environment()
    content = {"workload": "routing-replicas", **machine, "options": asdict(options), "settings": options.settings}
    measured: list[Measured] = []
    for one in _measure(home, options, console):
        measured.append(one)
        # Write after each measurement, so that a failure does not lose the others.
        report.write(path, content | {"rounds": [asdict(kept) for kept in measured]})
    show(measured, report.describe(machine), path.with_suffix(".png"))
    return path


def requests_of(options: Options, trace: str, number: int, server: Server, vocabulary: int) -> list[Request]:
    """Draw the requests of a round, which are the same for every rule. Each waits for an earlier one of its client."""
    chance = random.Random(f"{options.seed} {trace} {number}")  # noqa: S311 - the same numbers every time
    names = [adapter_name(index) for index in range(options.adapters)]
    weights = [1.0 if trace == "uniform" else 1 / (rank + 1) for rank in range(options.adapters)]
    drawn = chance.choices(names, weights, k=options.filling + options.requests)
    return [
        Request(
            at=0.0,
            model=name,
            headers=server.headers_for(name),
            prompt=chance.choices(range(vocabulary), k=PROMPT_TOKENS),
            output_tokens=options.output_tokens,
            after=index - options.clients if index >= options.clients else None,
        )
        for index, name in enumerate(drawn)
    ]


def figures_of(samples: Sequence[Sample]) -> dict[str, float]:
    """Compute METRICS of the measured requests.

    Raises:
        LoadError: a request failed.
    """
    if failed := [sample.why for sample in samples if sample.why]:
        raise LoadError(f"{len(failed)} requests failed. The first one: {failed[0]}.")
    ttft = [sample.ttft_s for sample in samples if sample.ttft_s is not None]
    wall_s = max(sample.end or 0.0 for sample in samples) - min(sample.sent or 0.0 for sample in samples)
    return {
        "warm": sum(sample.load_ms is None for sample in samples) / len(samples),
        **report.distribution("ttft", "s", ttft),
        "requests_per_s": len(samples) / wall_s,
    }


def adapter_name(index: int) -> str:
    return f"adapter-{index}"


def _measure(home: Path, options: Options, console: Console) -> Iterator[Measured]:
    base = models.toy_base(home)
    folders = models.adapters(home, base, options.adapters, (RANK,), options.seed)
    adapters = {adapter_name(index): folder for index, folder in enumerate(folders)}
    total = options.rounds * len(options.traces) * len(options.policies)
    with tempfile.TemporaryDirectory(dir=home) as folder, Progress(console=console, transient=True) as progress:
        task = progress.add_task("starting the replicas", total=total)
        with replicas.fleet(
            base,
            adapters,
            home=home,
            folder=Path(folder),
            count=options.replicas,
            settings=options.settings,
        ) as start:
            for number in range(1, options.rounds + 1):
                for policy in options.policies:
                    with _server(start, policy) as server:
                        _require(server, options)
                        for trace in options.traces:
                            progress.update(task, description=f"round {number}, {trace}, {policy}")
                            requests = requests_of(options, trace, number, server, models.vocabulary(base))
                            samples = open_loop.drive(Plan(server.port, requests)).samples
                            yield Measured(PART, trace, policy, number, figures_of(samples[options.filling :]))
                            progress.advance(task)


def _server(start: replicas.Start, policy: str) -> Any:
    if policy == OURS:
        return start(policy)
    return start(policy, module="app.cli.other_routing", variables={"ROUTING": policy})


def _require(server: Server, options: Options) -> None:
    """Check that the server sees all replicas.

    Raises:
        LoadError
    """
    slots = int(shown_engine(server)["slots"]["total"])
    if slots != options.replicas * options.slots:
        raise LoadError(f"The server sees {slots} slots instead of {options.replicas * options.slots}.")


def show(measured: Sequence[Measured], machine: str, png: Path) -> None:
    """Print the tables to stdout and draw the plot."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    console.print(machine, soft_wrap=True)
    spreads = summaries(measured)
    policies = list(dict.fromkeys(one.policy for one in measured))
    traces = list(dict.fromkeys(one.trace for one in measured))
    for trace in traces:
        table = Table("", *policies, title=f"{trace}: median (smallest to largest)", title_justify="left")
        for name, metric in METRICS.items():
            table.add_row(
                metric.label, *(report.spread(spreads[PART, trace, one][name], metric.digits) for one in policies)
            )
        console.print(table)
        if (gain := gain_of(measured, trace)) is not None:
            console.print(f"{OURS} / {RANDOM}: requests without a load {gain:.2f} (median of the rounds)")
    panel = Panel(
        title="share of requests without a load",
        x="trace",
        y="share",
        series=[
            Series(one, list(range(len(traces))), [spreads[PART, trace, one]["warm"].median for trace in traces])
            for one in policies
        ],
    )
    plots.draw(png, f"Workload routing on replicas: {', '.join(traces)}", [panel])


def gain_of(measured: Sequence[Measured], trace: str) -> float | None:
    """Median ratio of the share of requests without a load, ours to random; None if a round lacks one of them."""
    warm = {(one.policy, one.round): one.figures["warm"] for one in measured if one.trace == trace}
    rounds = [number for policy, number in warm if policy == OURS]
    pairs = [(warm[OURS, number], warm.get((RANDOM, number))) for number in rounds]
    quotients = [ours / theirs for ours, theirs in pairs if theirs]
    return median(quotients) if quotients and len(quotients) == len(pairs) else None
