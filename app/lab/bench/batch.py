"""Workload ``batch``: shuffled lines for many adapters on few slots, by Tenora's batches and by the alternatives.

Each round draws new lines and measures its sides in turn (:mod:`app.lab.bench.batch_sides`). ``batch`` and ``clients``
share one fresh Tenora server, and their order alternates between rounds. The commands of vLLM follow without it, with
the engine arguments that Tenora computes.

With ``interactive`` it measures the first tokens of another tenant's requests instead
(:mod:`app.lab.bench.batch_interactive`).
"""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from app.demo.train import ensure_demo
from app.lab.bench import batch_interactive, batch_sides, models, plots, report, rivals
from app.lab.bench.batch_interactive import DURING
from app.lab.bench.batch_lines import Line, make_lines
from app.lab.bench.batch_sides import BATCH, CLIENTS, GENERATE, RUN_BATCH, SIDES, Engine
from app.lab.bench.pairs import Prompts
from app.lab.bench.plots import Panel, Series
from app.lab.bench.report import Metric
from app.lab.bench.servers import Server

RANK = 8
KILL = "batch, killed at half"

METRICS: Mapping[str, Metric] = {
    "lines_per_s": Metric("lines/s", 1),
    "seconds": Metric("seconds", 1),
    "start_s": Metric("engine start, s", 1),
    "loads": Metric("adapter loads", 0),
    "server_mib": Metric("peak memory of the engine's processes, MiB", 0),
    "client_mib": Metric("peak memory of the client, MiB", 0),
    "lost": Metric("lines lost", 0),
    "double": Metric("lines with two answers", 0),
    "charged_twice": Metric("lines charged twice", 0),
    "tokens_off": Metric("tokens charged without an answer", 0),
    "measured_adapters": Metric("adapters measured, others extrapolated", 0),
}
STREAM_METRICS: Mapping[str, Metric] = {
    "ttft_p50_ms": Metric("TTFT p50, ms", 1),
    "ttft_p99_ms": Metric("TTFT p99, ms", 1),
    "ttft_max_ms": Metric("TTFT max, ms", 1),
    "requests": Metric("interactive requests", 0),
    "lines_per_s": Metric("lines/s of the batch", 1),
    "lines_done": Metric("lines done in this time", 0),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the measurement.

    Attributes:
        slots: LoRA slots of every engine.
        rounds: rounds, each on a fresh server.
        run_batches: adapters that ``vllm run-batch`` runs for; the others are extrapolated. None: all.
        alone_s, during_s: seconds of interactive requests alone, and with a batch.
    """

    lines: int
    adapters: int
    slots: int = 4
    rounds: int = 3
    run_batches: int | None = 3
    alone_s: float = 10.0
    during_s: float = 40.0


FULL = Size(10_000, 200)
INTERACTIVE = Size(4_000, 16)
QUICK = Size(48, 6, slots=2, rounds=1, run_batches=1, alone_s=1.0, during_s=5.0)


@dataclass(frozen=True, slots=True)
class Round:
    """One side, or one part of the interactive workload, in one round.

    Attributes:
        figures: metrics by name.
        ttft_s: samples of an interactive part.
    """

    side: str
    number: int
    figures: Mapping[str, float]
    ttft_s: Sequence[float] = field(default=())


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run.

    Attributes:
        sides: sides to measure, without those of ``interactive``.
        kill: whether to kill the server at half of one more batch in each round.
        interactive: whether to measure interactive requests instead of the sides.
    """

    size: Size
    sides: Sequence[str] = SIDES
    kill: bool = False
    interactive: bool = False
    seed: int = 2026


class Contest:
    """Rounds of one run.

    Args:
        adapters: folder by adapter name. ``interactive`` also needs that of the interactive tenant.
        dtype: dtype of the served base.
        home: folder that keeps published adapters between runs.
        tell: callback with a sentence of progress.

    Attributes:
        settings: settings of Tenora.
        arguments: arguments of vLLM's commands.
    """

    def __init__(
        self,
        options: Options,
        base: Path,
        adapters: Mapping[str, Path],
        *,
        home: Path,
        dtype: str,
        tell: Callable[[str], None],
    ) -> None:
        self._options, self._base, self._adapters, self._home, self._tell = options, base, adapters, home, tell
        self._names = [name for name in adapters if name != batch_interactive.ADAPTER]
        self._words = _words(base)
        slots = options.size.slots
        self.settings = {
            "TENORA_ENGINE__MAX_LORAS": str(slots),
            "TENORA_ENGINE__MAX_LORA_RANK": str(RANK),
            "TENORA_ENGINE__DTYPE": dtype,
        }
        self.arguments = rivals.vllm_arguments(base, slots=slots, host_adapters=2 * slots, settings=self.settings)

    def round(self, number: int, folder: Path) -> list[Round]:
        """Measure every side once.

        Raises:
            ServerFailed, NotMeasured, LoadError
        """
        if self._options.interactive:
            return self._interactive(number, folder)
        return [*self._tenora(number, folder), *self._vllm(number, folder)]

    def described(self) -> dict[str, object]:
        """Options of the measurement, for the JSON file."""
        return {
            "options": asdict(self._options),
            "base": str(self._base),
            "settings": self.settings,
            "vllm_arguments": self.arguments,
        }

    def _tenora(self, number: int, folder: Path) -> list[Round]:
        measures = {BATCH: batch_sides.measure_batch, CLIENTS: batch_sides.measure_clients}
        sides = [side for side in measures if side in self._options.sides]
        if not sides and not self._options.kill:
            return []
        rounds = []
        with self._server(folder) as server:
            for side in sides if number % 2 else reversed(sides):
                self._tell(f"round {number}: {side}")
                figures = measures[side](server, self._lines(number, side), folder)
                rounds.append(Round(side, number, figures))
            if self._options.kill:
                self._tell(f"round {number}: {KILL}")
                lines = self._lines(number, KILL)
                figures = batch_sides.measure_kill(server, lines, folder, base=self._base, settings=self.settings)
                rounds.append(Round(KILL, number, figures))
        return rounds

    def _vllm(self, number: int, folder: Path) -> list[Round]:
        engine, rounds = Engine(self._base, self._adapters, self.arguments), []
        for side in (GENERATE, RUN_BATCH):
            if side not in self._options.sides:
                continue
            self._tell(f"round {number}: {side}")
            lines = self._lines(number, side)
            if side == GENERATE:
                figures = batch_sides.measure_generate(engine, lines, folder)
            else:
                figures = batch_sides.measure_run_batch(engine, lines, folder, runs=self._options.size.run_batches)
            rounds.append(Round(side, number, figures))
        return rounds

    def _interactive(self, number: int, folder: Path) -> list[Round]:
        size = self._options.size
        with self._server(folder) as server:
            self._tell(f"round {number}: interactive requests alone and during a batch")
            streams = batch_interactive.measure(
                server,
                self._lines(number, DURING),
                folder,
                prompts=Prompts(models.vocabulary(self._base), self._options.seed + number),
                alone_s=size.alone_s,
                during_s=size.during_s,
            )
        return [Round(part, number, stream.figures, stream.ttft_s) for part, stream in streams.items()]

    def _server(self, folder: Path) -> AbstractContextManager[Server]:
        return rivals.tenora(
            self._base,
            self._adapters,
            home=self._home,
            folder=folder,
            tenants={batch_interactive.ADAPTER: batch_interactive.TENANT},
            settings=self.settings,
        )

    def _lines(self, number: int, side: str) -> list[Line]:
        """Lines of a side: the same lengths and adapters for each, with other prompts."""
        seed = f"{self._options.seed} {number}"
        return make_lines(self._options.size.lines, self._names, self._words, seed=seed, words_seed=side)


def run(home: Path, options: Options, *, out: Path | None, console: Console, base: Path | None = None) -> Path:
    """Run the benchmark, print its table to stdout, and write a JSON file with a PNG next to it.

    Args:
        home: folder that keeps models and published adapters between runs.
        console: console for progress.
        base: folder of another base than the demo's. Its tokenizer needs a chat template.

    Returns:
        Path of the JSON file.

    Raises:
        ServerFailed, NotMeasured, LoadError
        tenora_client.transport.Refused: the server refused a request.
    """
    home = home.resolve()  # the servers run in another folder
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = "batch-interactive" if options.interactive else "batch"
    path = out or home / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    machine = report.environment()
    with tempfile.TemporaryDirectory(dir=home) as folder, Progress(console=console, transient=True) as progress:
        task = progress.add_task("preparing models", total=options.size.rounds)
        dtype = "auto" if base else models.served_dtype()
        base = base.resolve() if base else ensure_demo(home, progress).base
        contest = Contest(
            options,
            base,
            _adapters(home, base, options),
            home=home,
            dtype=dtype,
            tell=lambda text: progress.update(task, description=text),
        )
        rounds: list[Round] = []
        for number in range(1, options.size.rounds + 1):
            here = Path(folder) / f"round-{number}"
            here.mkdir()
            rounds += contest.round(number, here)
            progress.advance(task)
            # Write after each round, so that a failure does not lose hours of results.
            report.write(
                path, {"workload": name, **machine, **contest.described(), "rounds": list(map(asdict, rounds))}
            )
    show(rounds, report.describe(machine), options)
    plots.draw(path.with_suffix(".png"), name, panels(rounds))
    return path


def show(rounds: Sequence[Round], machine: str, options: Options) -> None:
    """Print the table to stdout."""
    # A pipe has no width, and the table needs this one.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(machine, soft_wrap=True)
    size = options.size
    console.print(f"{size.lines} lines, {size.adapters} adapters, {size.slots} slots, {size.rounds} rounds")
    console.print("medians (smallest to largest round)")
    console.print(table(rounds, STREAM_METRICS if options.interactive else METRICS))


def table(rounds: Sequence[Round], metrics: Mapping[str, Metric]) -> Table:
    """Table with a column for each side, and the ratio of the first side's rate to that of each."""
    sides = list(dict.fromkeys(one.side for one in rounds))
    sums = {side: report.summarise([one.figures for one in rounds if one.side == side]) for side in sides}
    result = Table("", *sides)
    for name, metric in metrics.items():
        if any(name in sums[side] for side in sides):
            cells = (sums[side].get(name) for side in sides)
            result.add_row(
                metric.label, *("-" if cell is None else report.spread(cell, metric.digits) for cell in cells)
            )
    if BATCH in sides:
        result.add_row("lines/s of the batch over this", *(_ratio(rounds, side) for side in sides))
    return result


def ratios(rounds: Sequence[Round], side: str) -> list[float]:
    """Lines per second of the batch over those of a side, for each round with both."""
    rates = {(one.side, one.number): one.figures["lines_per_s"] for one in rounds if "lines_per_s" in one.figures}
    numbers = [number for of, number in rates if of == side and (BATCH, number) in rates]
    return [rates[BATCH, number] / rates[side, number] for number in numbers]


def _ratio(rounds: Sequence[Round], side: str) -> str:
    values = ratios(rounds, side)
    return f"{median(values):.2f}" if values else "-"


def panels(rounds: Sequence[Round]) -> list[Panel]:
    """Plot the rates by round, or the sorted first tokens of interactive requests."""
    sides = dict.fromkeys(one.side for one in rounds)
    if any(one.ttft_s for one in rounds):
        series = [_sorted_series(side, [s for one in rounds if one.side == side for s in one.ttft_s]) for side in sides]
        return [Panel("interactive requests", "share of requests, %", "TTFT, ms", series, log_y=True)]
    series = []
    for side in sides:
        rates = {
            one.number: one.figures["lines_per_s"]
            for one in rounds
            if one.side == side and "lines_per_s" in one.figures
        }
        if rates:
            series.append(Series(side, list(rates), list(rates.values())))
    return [Panel("throughput", "round", "lines/s", series, log_y=True)]


def _sorted_series(name: str, seconds: Sequence[float]) -> Series:
    shares = [100 * (place + 1) / len(seconds) for place in range(len(seconds))]
    return Series(name, shares, [1000 * value for value in sorted(seconds)])


def _adapters(home: Path, base: Path, options: Options) -> dict[str, Path]:
    count = options.size.adapters + options.interactive
    folders = models.adapters(home, base, count, (RANK,), options.seed)
    names = [f"adapter-{index:04d}" for index in range(options.size.adapters)]
    return dict(zip([*names, batch_interactive.ADAPTER], folders, strict=False))


def _words(base: Path) -> list[str]:
    """Texts of the base's tokens that are words."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    texts = (tokenizer.decode([number]).strip() for number in range(len(tokenizer)))
    return sorted({text for text in texts if text.isalpha() and text.isascii()})
