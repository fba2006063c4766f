"""Fuzz runner: checks every input against the bounds and keeps a failing input with its seed."""

import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.targets import AdapterTarget, ArchiveTarget, FormTarget, Target
from tests.fuzz.watch import (
    MAX_BYTES,
    MAX_SECONDS,
    Violation,
    peak_bytes,
    reset_peak,
    within_memory,
    within_time,
    writes_only_in,
)

TARGETS: tuple[type[Target], ...] = (AdapterTarget, FormTarget, ArchiveTarget)


class Failed(Exception):
    """An input broke a bound or a reader.

    Attributes:
        kept: folder with the bytes of the input.
    """

    def __init__(self, target: str, seed: int, index: int, kept: Path, error: BaseException) -> None:
        self.kept = kept
        super().__init__(f"{target}, seed {seed}, input {index}, kept in {kept}: {type(error).__name__}: {error}")


@dataclass
class Report:
    """Result of a run.

    Attributes:
        verdicts: number of inputs by target and verdict.
        slowest_s: CPU seconds of the slowest input, by target.
        grown_bytes: maximum growth of resident memory during one input.
    """

    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    slowest_s: dict[str, float] = field(default_factory=dict)
    grown_bytes: int = 0

    @property
    def count(self) -> int:
        return sum(counter.total() for counter in self.verdicts.values())


def _no_tick(done: int) -> None:
    """Ignore the progress."""


def fuzz(
    seed: int, indexes: range, *, kept: Path, only: str | None = None, tick: Callable[[int], None] = _no_tick
) -> Report:
    """Run the inputs of these indexes.

    Input ``i`` of a seed is the same in every run, and ``i`` also selects its target.

    Args:
        kept: folder for an input that fails.
        only: name of the one target to run.
        tick: called with the number of inputs done, after each.

    Raises:
        Failed: at the first failure.
    """
    with ExitStack() as opened:
        targets = [opened.enter_context(closing(make())) for make in TARGETS if only in (None, make.name)]
        report = Report({target.name: Counter() for target in targets})
        folder = opened.enter_context(scratch_folder())
        _run(seed, range(min(30, len(indexes))), targets, folder, kept, Report({t.name: Counter() for t in targets}))
        _run(seed, indexes, targets, folder, kept, report, tick)
    return report


def _run(
    seed: int,
    indexes: range,
    targets: list[Target],
    folder: Path,
    kept: Path,
    report: Report,
    tick: Callable[[int], None] = _no_tick,
) -> None:
    for done, index in enumerate(indexes, 1):
        target = targets[index % len(targets)]
        data = make_input(target, seed, index)
        try:
            verdict, seconds, grown = _judge(target, data, folder)
        except (Exception, Violation) as error:
            place = _keep(kept / f"{target.name}-{seed}-{index}", data, error)
            raise Failed(target.name, seed, index, place, error) from error
        report.verdicts[target.name][verdict] += 1
        report.slowest_s[target.name] = max(report.slowest_s.get(target.name, 0.0), seconds)
        report.grown_bytes = max(report.grown_bytes, grown)
        tick(done)


def make_input(target: Target, seed: int, index: int) -> tuple[bytes, ...]:
    return target.make(random.Random(f"{seed}:{index}:{target.name}"))


def _judge(target: Target, data: tuple[bytes, ...], folder: Path) -> tuple[str, float, int]:
    """Return the verdict, the CPU seconds and the memory growth in bytes; leave the folder empty."""
    target.prepare(data, folder)
    before = reset_peak()
    try:
        with writes_only_in(folder), within_memory(), within_time():
            started = time.process_time()
            verdict = target.read(data, folder)
            seconds = time.process_time() - started
    finally:
        for entry in os.scandir(folder):
            os.unlink(entry.path)  # noqa: PTH108 - fails on folders, which no reader makes
    if seconds > MAX_SECONDS:
        raise Violation(f"{seconds:.2f} s of CPU time")
    grown = peak_bytes() - before
    if grown > MAX_BYTES:
        raise Violation(f"{grown} bytes of memory")
    return verdict, seconds, grown


def _keep(place: Path, data: tuple[bytes, ...], error: BaseException) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(data):
        (place / str(number)).write_bytes(part)
    (place / "error.json").write_text(json.dumps({"error": repr(error)}))
    return place


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Create a folder in memory where possible: a million files are a lot for a disk."""
    memory = Path("/dev/shm")  # noqa: S108
    path = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None)).resolve()
    try:
        yield path
    finally:
        shutil.rmtree(path)
