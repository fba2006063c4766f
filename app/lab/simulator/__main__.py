"""``tenora server bench simulate``: run the scheduler over a simulated engine with millions of requests.

All results but the wall time are deterministic for the seed. The exit code is 1 if any adapter waited longer than the
scheduler's bound.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.lab.bench.report import environment
from app.lab.simulator.machine import Machine
from app.lab.simulator.outcome import Outcome, table
from app.lab.simulator.simulation import Simulation
from app.lab.simulator.workload import Workload
from app.scheduling.admission import Admission

_GIB = 2**30
_DEFAULT = Machine()


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, print a table and return the exit code."""
    options = _parser().parse_args(arguments)
    machine = Machine(
        slots=options.slots,
        window=options.window,
        host_bytes=int(options.host_gib * _GIB),
        max_age_s=options.max_age,
    )
    workload = _workload(options, machine)
    outcome = simulate(workload, machine)
    Console(highlight=False).print(table(outcome))
    if options.out:
        result = {
            "environment": environment(),
            "workload": asdict(workload),
            "machine": asdict(machine),
            "outcome": asdict(outcome),
        }
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if outcome.violated else 0


def simulate(workload: Workload, machine: Machine) -> Outcome:
    """Run one simulation of the server's scheduler, with a progress bar on stderr.

    Raises:
        BrokenPromise: the scheduler admitted a request that cannot run, or left requests waiting forever.
    """
    scheduler = Admission(
        slots=machine.slots, window=machine.window, max_age_s=machine.max_age_s, bounds=machine.bounds
    )
    simulation, begun = Simulation(workload, machine, scheduler), time.perf_counter()
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=workload.requests)
        simulation.run(lambda arrived: progress.update(task, completed=arrived))
    return Outcome.of(simulation, time.perf_counter() - begun)


def _workload(options: argparse.Namespace, machine: Machine) -> Workload:
    mean = (sum(Workload.lengths) - 1) / 2
    return Workload(
        requests=options.requests,
        seed=options.seed,
        rate=options.load * machine.costs.requests_per_s(machine.window, mean, mean),
        adapters=options.adapters,
        tenants=options.tenants,
        cv=options.cv,
        alpha=options.alpha,
        hostile=options.hostile,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tenora server bench simulate", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000, help="Number of requests")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the workload")
    parser.add_argument("--adapters", type=int, default=Workload.adapters, help="Number of adapters")
    parser.add_argument("--tenants", type=int, default=Workload.tenants, help="Number of tenants")
    parser.add_argument("--slots", type=int, default=_DEFAULT.slots, help="Number of slots")
    parser.add_argument("--window", type=int, default=_DEFAULT.window, help="Maximum number of sequences in the engine")
    parser.add_argument(
        "--host-gib",
        type=float,
        default=_DEFAULT.host_bytes / _GIB,
        help="Host memory for staged adapters, in GiB",
    )
    parser.add_argument("--max-age", type=float, default=_DEFAULT.max_age_s, help="T of the wait bound, in seconds")
    parser.add_argument(
        "--load",
        type=float,
        default=0.25,
        help="Load of the ordinary tenants, as a fraction of the engine's capacity with one adapter",
    )
    parser.add_argument(
        "--cv",
        type=float,
        default=Workload.cv,
        help="Coefficient of variation of the gaps between arrivals; 1 is Poisson",
    )
    parser.add_argument(
        "--alpha", type=float, default=Workload.alpha, help="Skew of the adapters' popularity; 1 is uniform"
    )
    parser.add_argument(
        "--hostile",
        type=float,
        default=Workload.hostile,
        help="Rate of the hostile tenant, as a multiple of the most active other tenant's; 0: no hostile tenant",
    )
    parser.add_argument("--out", type=Path, help="File for the results as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
