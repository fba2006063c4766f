"""Fuzz the HTTP API: ``python -m tests.fuzz.api --calls 50000 --seed 1``.

It calls every operation with callers of every kind.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.api.runner import Report, Target, fuzz
from tests.support.serving import PeftFiles, peft_files, save_base
from tests.support.site import running_site

_EVERY_S = 10.0


def main() -> int:
    """Return the exit code: 0 if every answer was valid, 1 if one was not."""
    options = _parse()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-api-") as folder:
        serve = with_engine if options.engine else without_engine
        with serve(Path(folder)) as target:
            tick = _ticker(options.calls)
            report = fuzz(target, calls=options.calls, number=options.seed, seconds=options.seconds, tick=tick)
    sys.stdout.write(f"{report.count} calls, seed {options.seed}, {time.monotonic() - started:.0f} s\n")
    show(report)
    return 1 if report.findings else 0


@contextmanager
def without_engine(folder: Path) -> Iterator[Target]:
    """Run the application in this process; operations that need an engine answer 503."""
    files = (peft_files(folder / "peft-1", seed=1), peft_files(folder / "peft-2", seed=2))
    base = save_base(folder / "tiny-llama")
    with running_site(folder / "home", base) as site:
        yield Target(site.url, site.admin_key, files, folder)


@contextmanager
def with_engine(folder: Path) -> Iterator[Target]:
    """Run `tenora server serve` with the real engine and the demo's base and adapters."""
    # Imported here: training needs torch.
    from app.demo.train import ensure_demo
    from tests.support.server import running
    from tests.support.server_fixtures import SLOTS

    demo = ensure_demo(folder / "demo-home", progress=None)
    first, second, *_ = (
        PeftFiles((path / "adapter_config.json").read_bytes(), (path / "adapter_model.safetensors").read_bytes())
        for path in demo.adapters.values()
    )
    home = folder / "home"
    home.mkdir()
    with running(home, demo.base, **SLOTS) as server:
        yield Target(server.url, server.admin_key, (first, second), folder)


def show(report: Report) -> None:
    """Print calls by operation and status, calls by caller, and the findings."""
    for label, statuses in report.statuses.items():
        counts = "  ".join(f"{status} x {times}" for status, times in sorted(statuses.items()))
        sys.stdout.write(f"{statuses.total():6} {label}: {counts}\n")
    callers = ", ".join(f"{caller} {times}" for caller, times in report.callers.most_common())
    sys.stdout.write(f"by caller: {callers}; {report.unsendable} cases that HTTP cannot carry\n")
    for (label, complaint), finding in report.findings.items():
        sys.stdout.write(f"FOUND {finding.times} times: {label}: {complaint}\n    {finding.first}\n")
    sys.stdout.write(f"{len(report.findings)} findings\n")


def _ticker(total: int) -> Callable[[int], None]:
    started = shown = time.monotonic()

    def tick(done: int) -> None:
        nonlocal shown
        if (now := time.monotonic()) - shown > _EVERY_S:
            shown = now
            sys.stderr.write(f"{done} of {total}, {done / (now - started):.0f} a second\n")

    return tick


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.api", description="Calls for the HTTP API.")
    parser.add_argument("--calls", type=int, default=50_000, help="calls in total")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no more calls are made")
    parser.add_argument("--seed", type=int, default=1, help="what all chance comes from")
    parser.add_argument("--engine", action="store_true", help="with the real engine and the demo's adapters")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
