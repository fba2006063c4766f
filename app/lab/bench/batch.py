"""Workload ``batch``: shuffled lines for many adapters on few slots, by Tenora's batches and by the alternatives.

Each round draws new lines and measures its sides in turn (:mod:`app.lab.bench.batch_sides`). ``batch`` and ``clients``
share one fresh Tenora server, and their order alternates between rounds. The commands of vLLM follow without it, with
the engine arguments that Tenora computes.

Results are written after each side. A run with the file of an earlier one measures what the file lacks.

With ``interactive`` it measures the first tokens of another tenant's requests instead
(:mod:`app.lab.bench.batch_interactive`).
"""

import itertools
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from app.demo.train import ensure_demo
from app.lab.bench import batch_interactive, batch_sides, models, plots, report, rivals
from app.lab.bench.batch_interactive import ALONE, DURING
from app.lab.bench.batch_lines import Line, make_lines
from app.lab.bench.batch_rounds import METRICS, STREAM_METRICS, Round, RoundsFile, panels, table
from app.lab.bench.batch_sides import BATCH, CLIENTS, GENERATE, RUN_BATCH, SIDES, Engine
from app.lab.bench.pairs import Prompts
from app.lab.bench.servers import Server

RANK = 8
KILL = "batch, killed at half"


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

    def round(self, number: int, folder: Path, results: RoundsFile) -> None:
        """Measure every side once, except for those that the file has already.

        Raises:
            ServerFailed, NotMeasured, LoadError
        """
        if self._options.interactive:
            if not results.has(number, ALONE, DURING):
                results.add(*self._interactive(number, folder))
            return
        sides = [*self._options.sides, KILL] if self._options.kill else self._options.sides
        missing = [side for side in sides if not results.has(number, side)]
        for measured in itertools.chain(self._tenora(missing, number, folder), self._vllm(missing, number, folder)):
            results.add(measured)

    def described(self) -> dict[str, object]:
        """Conditions of the measurement, for the JSON file."""
        size = asdict(self._options.size)
        del size["rounds"]  # a later run may add some
        return {
            "size": size,
            "seed": self._options.seed,
            "base": str(self._base),
            "settings": self.settings,
            "vllm_arguments": self.arguments,
        }

    def _tenora(self, missing: Collection[str], number: int, folder: Path) -> Iterator[Round]:
        """Measure those of these sides that run on Tenora's server."""
        measures = {BATCH: batch_sides.measure_batch, CLIENTS: batch_sides.measure_clients}
        sides = [side for side in measures if side in missing]
        if not sides and KILL not in missing:
            return
        with self._server(folder) as server:
            for side in sides if number % 2 else reversed(sides):
                self._tell(f"round {number}: {side}")
                yield Round(side, number, measures[side](server, self._lines(number, side), folder))
            if KILL in missing:
                self._tell(f"round {number}: {KILL}")
                lines = self._lines(number, KILL)
                figures = batch_sides.measure_kill(server, lines, folder, base=self._base, settings=self.settings)
                yield Round(KILL, number, figures)

    def _vllm(self, missing: Collection[str], number: int, folder: Path) -> Iterator[Round]:
        """Measure those of these sides that are commands of vLLM."""
        engine = Engine(self._base, self._adapters, self.arguments)
        for side in (GENERATE, RUN_BATCH):
            if side not in missing:
                continue
            self._tell(f"round {number}: {side}")
            lines = self._lines(number, side)
            if side == GENERATE:
                figures = batch_sides.measure_generate(engine, lines, folder)
            else:
                figures = batch_sides.measure_run_batch(engine, lines, folder, runs=self._options.size.run_batches)
            yield Round(side, number, figures)

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
        out: JSON file (None: a new one). If it exists, its rounds are kept, and only the missing ones are measured.
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
        results = RoundsFile(path, {"workload": name, **machine, **contest.described()})
        for number in range(1, options.size.rounds + 1):
            here = Path(folder) / f"round-{number}"
            here.mkdir()
            contest.round(number, here, results)
            progress.advance(task)
    show(results.rounds, report.describe(machine), options)
    plots.draw(path.with_suffix(".png"), name, panels(results.rounds))
    return path


def show(rounds: Sequence[Round], machine: str, options: Options) -> None:
    """Print the table to stdout."""
    # A pipe has no width, and the table needs this one.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(machine, soft_wrap=True)
    size = options.size
    numbers = {one.number for one in rounds}
    console.print(f"{size.lines} lines, {size.adapters} adapters, {size.slots} slots, {len(numbers)} rounds")
    console.print("medians (smallest to largest round)")
    console.print(table(rounds, STREAM_METRICS if options.interactive else METRICS))


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
