"""Run the fuzzer: ``python -m tests.fuzz --count 1000000 --seed 1 --workers 1``.

The package's tests show what is checked.
"""

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.runner import Failed, Report, fuzz

_SHOWN = 8
_EVERY_S = 10.0


def main() -> int:
    """Return the exit code: 0 if every input got a verdict, 1 if one did not."""
    options = _parse()
    # The multipart parser warns about every malformed body.
    logging.disable(logging.ERROR)
    started = time.monotonic()
    shares = [
        (options.seed, range(options.first + worker, options.first + options.count, options.workers), options)
        for worker in range(options.workers)
    ]
    try:
        if options.workers == 1:
            reports = [_work(*shares[0])]
        else:
            with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
                reports = pool.starmap(_work, shares)
    except Failed as failure:
        sys.stdout.write(f"FAILED {failure}\n")
        return 1
    _show(reports, options.seed, time.monotonic() - started)
    return 0


def _work(seed: int, indexes: range, options: argparse.Namespace) -> Report:
    tick = _ticker(len(indexes)) if indexes.start == options.first else lambda _: None
    return fuzz(seed, indexes, kept=options.kept, only=options.only, tick=tick)


def _ticker(total: int) -> Callable[[int], None]:
    started = shown = time.monotonic()

    def tick(done: int) -> None:
        nonlocal shown
        if done % 100 == 0 and (now := time.monotonic()) - shown > _EVERY_S:
            shown = now
            sys.stderr.write(f"{done} of {total}, {done / (now - started):.0f} a second\n")

    return tick


def _show(reports: list[Report], seed: int, seconds: float) -> None:
    count = sum(report.count for report in reports)
    grown = max(report.grown_bytes for report in reports) / 2**20
    sys.stdout.write(f"{count} inputs, seed {seed}, {seconds:.0f} s; at most {grown:.1f} MiB of memory for one\n")
    for name in reports[0].verdicts:
        verdicts = sum((report.verdicts[name] for report in reports), start=type(reports[0].verdicts[name])())
        slowest = max(report.slowest_s[name] for report in reports)
        sys.stdout.write(f"{name}: {verdicts.total()} inputs, slowest {slowest * 1000:.0f} ms of CPU time\n")
        for verdict, times in verdicts.most_common(_SHOWN):
            sys.stdout.write(f"    {times:8} {verdict}\n")
        if len(verdicts) > _SHOWN:
            sys.stdout.write(f"             and {len(verdicts) - _SHOWN} other verdicts\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Mutated inputs for the readers.")
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs in total")
    parser.add_argument("--seed", type=int, default=1, help="what all chance comes from")
    parser.add_argument("--first", type=int, default=0, help="index of the first input")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--only", choices=["adapter", "form", "archive"], help="one reader only")
    parser.add_argument("--kept", type=Path, default=Path("fuzz-failures"), help="folder for an input that fails")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
