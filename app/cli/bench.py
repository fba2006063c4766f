"""``tenora server bench``: benchmarks of this machine, one command each."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import httpx
import typer

from tenora_client.cli.connection import home
from tenora_client.cli.output import USAGE, fail, note, stderr
from tenora_client.transport import Refused

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

app = typer.Typer(no_args_is_help=True, help="Measure Tenora on this machine.")

#: The benchmark modules parse their options, ``--help`` included.
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}

Quick = Annotated[bool, typer.Option("--quick", help="One short round: a smoke test, not a result")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds for each server (default: 5)")]
Out = Annotated[Path | None, typer.Option(help="File for the JSON result (default: a new one below HOME/bench)")]
Base = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="Folder of the base model (default: the benchmark's)")
]
Rank = Annotated[int | None, typer.Option(min=1, help="Rank of the adapters")]
Side = Annotated[list[str] | None, typer.Option(help="Server to measure, tenora or vllm; repeatable (default: both)")]
Seconds = Annotated[float | None, typer.Option(min=1, help="Length of each part in seconds")]

Counts = Annotated[str, typer.Option("--n", help="Numbers of adapters, separated by commas")]
Alphas = Annotated[
    str, typer.Option(help="Exponents of the power law, separated by commas: 1 is uniform, smaller is more skewed")
]
Loads = Annotated[
    str, typer.Option(help="Request rates in percent of vLLM's capacity with one adapter, separated by commas")
]
HostAdapters = Annotated[
    int | None, typer.Option(min=1, help="Adapters in vLLM's host memory (default: 2 to 4 times the slots)")
]

_Number = TypeVar("_Number", int, float)
_Size = TypeVar("_Size", bound="DataclassInstance")


@app.command()
def overhead(
    quick: Quick = False,
    out: Out = None,
    base: Base = None,
) -> None:
    """Compare Tenora with vLLM's own server: same weights, same engine arguments, one warm adapter."""
    # This module imports torch and vLLM.
    from app.lab.bench.overhead import run

    with _measuring():
        path = run(home() / "bench", out=out, quick=quick, console=stderr(), base=base)
    note(f"The result is in {path}.")


@app.command()
def guardrails(
    quick: Quick = False,
    out: Out = None,
    base: Base = None,
) -> None:
    """Measure the cost of limits and metering: Tenora with and without them, one warm adapter."""
    from app.lab.bench.limits_overhead import run

    with _measuring():
        path = run(home() / "bench", out=out, quick=quick, console=stderr(), base=base)
    note(f"The result is in {path}.")


@app.command()
def gateway(
    quick: Quick = False,
    out: Out = None,
    base: Base = None,
) -> None:
    """Compare an engine replica of Ray Serve with the engine in the server's process: one warm adapter."""
    from app.lab.bench.gateway_overhead import run

    with _measuring():
        path = run(home() / "bench", out=out, quick=quick, console=stderr(), base=base)
    note(f"The result is in {path}.")


@app.command()
def adapters(
    n: Counts = "1,8,32,200",
    alpha: Alphas = "0.3,1",
    load: Loads = "70,120",
    slots: Annotated[str, typer.Option(help="LoRA slots of both servers; auto is Tenora's choice")] = "4",
    seconds: Annotated[float, typer.Option(min=1, help="Seconds in which the requests of a cell arrive")] = 60,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each on fresh servers")] = 5,
    ranks: Annotated[str, typer.Option(help="Ranks of the adapters, round robin, separated by commas")] = "8",
    rivals: Annotated[
        str, typer.Option(help="Other servers, separated by commas: vllm (always runs), peft, base")
    ] = "vllm",
    host_adapters: HostAdapters = None,
    cv: Annotated[float, typer.Option(min=0.1, help="Coefficient of variation of the gaps between requests")] = 1,
    setting: Annotated[
        list[str] | None, typer.Option(help="Setting of Tenora's server as TENORA_NAME=VALUE; repeatable")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of adapters, requests and orders")] = 2026,
    quick: Quick = False,
    out: Out = None,
    base: Base = None,
) -> None:
    """Benchmark many adapters on few slots: throughput, attainment and the longest wait over a grid of loads."""
    from app.lab.bench.adapters import run
    from app.lab.bench.grid import Options

    try:
        options = Options(
            adapters=_numbers("--n", n, int),
            alphas=_numbers("--alpha", alpha, float),
            loads=_numbers("--load", load, int),
            ranks=_numbers("--ranks", ranks, int),
            rivals=tuple(rivals.split(",")),
            settings=dict(_pair(text) for text in setting or ()),
            slots=slots,
            seconds=seconds,
            rounds=rounds,
            host_adapters=host_adapters,
            cv=cv,
            seed=seed,
        )
    except ValueError as error:
        fail(str(error), USAGE)
    with _measuring():
        path = run(home() / "bench", options.quick() if quick else options, out=out, console=stderr(), base=base)
    note(f"The result is in {path} and {path.with_suffix('.png').name}.")


@app.command()
def coldload(
    quick: Quick = False,
    rounds: Rounds = None,
    out: Out = None,
    base: Base = None,
    adapter_rank: Rank = None,
    side: Side = None,
) -> None:
    """Measure the gaps of a running stream during adapter loads, and the load time of a cold adapter."""
    from app.lab.bench import coldload as workload

    size = _resized(workload.QUICK if quick else workload.FULL, rounds)
    _run_pair(workload.run, size, out=out, base=base, rank=adapter_rank or workload.RANK, side=side)


@app.command()
def starvation(
    quick: Quick = False,
    rounds: Rounds = None,
    out: Out = None,
    base: Base = None,
    adapter_rank: Rank = None,
    side: Side = None,
    seconds: Seconds = None,
) -> None:
    """Measure how long a cold adapter waits while a saturated one holds the only slot."""
    from app.lab.bench import starvation as workload

    size = _resized(workload.QUICK if quick else workload.FULL, rounds, seconds=seconds)
    _run_pair(workload.run, size, out=out, base=base, rank=adapter_rank or workload.RANK, side=side)


@app.command()
def fairness(
    quick: Quick = False,
    rounds: Rounds = None,
    out: Out = None,
    base: Base = None,
    adapter_rank: Rank = None,
    side: Side = None,
    seconds: Seconds = None,
    slots: Annotated[int | None, typer.Option(min=1, help="LoRA slots (default: one for each tenant)")] = None,
) -> None:
    """Measure isolation and fairness: seven tenants and one that sends ten times its share, and shares by weight."""
    from app.lab.bench import fairness as workload

    size = _resized(workload.QUICK if quick else workload.FULL, rounds, seconds=seconds, slots=slots)
    _run_pair(workload.run, size, out=out, base=base, rank=adapter_rank or workload.RANK, side=side)


@app.command()
def batch(
    lines: Annotated[
        int | None, typer.Option(min=1, help="Lines of a batch (default: 10000; with --interactive 4000)")
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", min=1, help="Number of adapters (default: 200; with --interactive 16)")
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="LoRA slots of every engine (default: 4)")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds, each on a fresh server (default: 3)")] = None,
    side: Annotated[
        list[str] | None,
        typer.Option(help="Side to measure: batch, clients, generate or run-batch; repeatable (default: all)"),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Run vllm run-batch for every adapter instead of three")] = False,
    kill: Annotated[
        bool, typer.Option("--kill", help="Also kill the server at half of a batch, and count lost lines")
    ] = False,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Measure first tokens of interactive requests during a batch instead")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Seconds of interactive requests during the batch (default: 40)")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of adapters and lines")] = 2026,
    quick: Quick = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the JSON result (default: a new one below HOME/bench). If it exists, its rounds are kept, "
            "and only missing ones are measured"
        ),
    ] = None,
    base: Base = None,
) -> None:
    """Compare a batch over many adapters with concurrent clients, LLM.generate and vllm run-batch."""
    from app.lab.bench import batch as workload
    from app.lab.bench.batch_sides import SIDES

    sides = [name for name in SIDES if name in (side or SIDES)]
    if wrong := sorted(set(side or ()) - set(SIDES)):
        fail(f"--side is {', '.join(wrong)}. Choose from {', '.join(SIDES)}.", USAGE)
    size = workload.QUICK if quick else workload.INTERACTIVE if interactive else workload.FULL
    size = _resized(size, rounds, lines=lines, adapters=n, slots=slots, during_s=seconds)
    options = workload.Options(
        replace(size, run_batches=None) if full else size, sides, kill=kill, interactive=interactive, seed=seed
    )
    with _measuring():
        path = workload.run(home() / "bench", options, out=out, console=stderr(), base=base)
    note(f"The result is in {path} and {path.with_suffix('.png').name}.")


@app.command()
def routing(
    replicas: Annotated[int, typer.Option(min=1, help="Number of engine replicas")] = 8,
    gateways: Annotated[
        int, typer.Option(min=1, help="Number of gateways, each with its own view of the replicas")
    ] = 1,
    slots: Annotated[int, typer.Option(min=1, help="LoRA slots of a replica")] = 16,
    adapters: Annotated[int, typer.Option(min=1, help="Number of adapters")] = 400,
    load: Annotated[
        float, typer.Option(min=1, help="Request rate in percent of the fleet's capacity with one adapter")
    ] = 30,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds in which the requests arrive")] = 60,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each with other requests")] = 5,
    traces: Annotated[str, typer.Option(help="Traces, separated by commas")] = "zipf,diurnal,flash crowd,mmpp",
    policies: Annotated[
        str, typer.Option(help="Policies, separated by commas")
    ] = "tenora,round robin,least loaded,power of two,llm-d",
    seed: Annotated[int, typer.Option(help="Seed of requests and policies")] = 2026,
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Compare routing policies of a simulated fleet: adapter loads and first tokens over four traces of arrivals."""
    from app.lab.bench.routing import Options, run

    try:
        options = Options(
            replicas=replicas,
            gateways=gateways,
            slots=slots,
            adapters=adapters,
            load=load,
            seconds=seconds,
            rounds=rounds,
            seed=seed,
            traces=tuple(traces.split(",")),
            policies=tuple(policies.split(",")),
        )
    except ValueError as error:
        fail(str(error), USAGE)
    path = run(home() / "bench", options.quick() if quick else options, out=out, console=stderr())
    note(f"The result is in {path} and {path.with_suffix('.png').name}.")


@app.command(name="routing-replicas")
def routing_replicas(
    replicas: Annotated[int, typer.Option(min=1, help="Number of engine replicas")] = 2,
    slots: Annotated[int, typer.Option(min=1, help="LoRA slots of a replica")] = 4,
    adapters: Annotated[int, typer.Option(min=1, help="Number of adapters")] = 16,
    requests: Annotated[int, typer.Option(min=1, help="Measured requests of each rule, trace and round")] = 400,
    clients: Annotated[int, typer.Option(min=1, help="Requests in flight")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each with other requests")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of adapters and requests")] = 2026,
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Compare routing rules on real engine replicas of this machine: the share of requests that wait for no load."""
    from app.lab.bench.routing_replicas import Options, run

    options = Options(
        replicas=replicas,
        slots=slots,
        adapters=adapters,
        requests=requests,
        clients=clients,
        rounds=rounds,
        seed=seed,
    )
    with _measuring():
        path = run(home() / "bench", options.quick() if quick else options, out=out, console=stderr())
    note(f"The result is in {path} and {path.with_suffix('.png').name}.")


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def registry(context: typer.Context) -> None:
    """Measure the cost of resolving a key and an adapter name in a large registry."""
    _run("app.lab.bench.registry", context.args)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def upload(context: typer.Context) -> None:
    """Measure the memory and time of publishing a large adapter."""
    _run("app.lab.bench.upload", context.args)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def resume(context: typer.Context) -> None:
    """Measure the bytes that an upload sends twice when it is killed repeatedly."""
    _run("app.lab.bench.resume", context.args)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def simulate(context: typer.Context) -> None:
    """Simulate the scheduler over millions of requests, and report whether any adapter waited too long."""
    _run("app.lab.simulator", context.args)


@app.command()
def decisions() -> None:
    """Measure the cost of a scheduling decision while ten thousand requests wait."""
    _run("app.lab.bench.decisions", [])


@contextmanager
def _measuring() -> Iterator[None]:
    """End the command with the reason of a failed measurement. Its servers end with it in every case."""
    from app.domain.errors import EngineUnavailable
    from app.lab.bench.servers import ServerFailed
    from app.lab.bench.wire import LoadError

    # Signals to this process do not reach the servers, which run in separate process groups. A shell also makes
    # background commands ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _end)
    try:
        yield
    except (EngineUnavailable, LoadError, ServerFailed, Refused, httpx.HTTPError) as error:
        fail(str(error))


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _numbers(option: str, text: str, kind: Callable[[str], _Number]) -> tuple[_Number, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} is {text!r}. Write numbers separated by commas.") from None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name.startswith("TENORA_")):
        raise ValueError(f"--setting is {text!r}. Write TENORA_NAME=VALUE.")
    return name, value


def _resized(size: _Size, rounds: int | None, **others: float | None) -> _Size:
    changes = {name: value for name, value in {"rounds": rounds, **others}.items() if value is not None}
    return replace(size, **changes)


def _run_pair(run: Callable[..., Path], size: object, *, side: list[str] | None, **options: object) -> None:
    from app.lab.bench.pairs import SIDES

    sides = [name for name in SIDES if name in (side or SIDES)]
    if not sides:
        fail(f"--side is {', '.join(side or [])}. Choose from {', '.join(SIDES)}.")
    with _measuring():
        path = run(home() / "bench", size=size, sides=sides, console=stderr(), **options)
    note(f"The result is in {path} and {path.with_suffix('.png').name}.")


def _run(module: str, arguments: list[str]) -> None:
    # Use a separate process: these benchmarks measure the memory and time of their imports.
    process = subprocess.run([sys.executable, "-m", module, *arguments], check=False)
    raise typer.Exit(process.returncode)
