"""Workload ``overhead``: what Tenora adds to vLLM's own server, same engine arguments, same weights.

A closed loop of streamed completions with one warm adapter. Both servers are started fresh and stay up, as an idle
engine takes no CPU; the rounds alternate between them, so that a machine that slows down slows both.
"""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from app.bench import report, servers
from app.bench.client import LoadError, Plan, Samples
from app.bench.servers import Server
from app.cli.client import Api, path_of
from app.demo.train import Demo, ensure_demo
from app.engine.arguments import engine_arguments
from app.settings import Settings

ADAPTER = "pricing"
INPUT_TOKENS, OUTPUT_TOKENS = 64, 32
SEED = 2024

_ROOT = Path(__file__).resolve().parents[2]
_BASE_NAME = "base"
_RIVAL = "vllm.entrypoints.openai.api_server"
# Tenora writes no access log either.
_RIVAL_ARGUMENTS = ("--host", "127.0.0.1", "--disable-uvicorn-access-log")
_CONFIG_FILE, _WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes:
        rounds: per server and concurrency.
        requests: concurrency -> requests in one round.
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
    number: int
    metrics: dict[str, float]
    api_cpu_s: float
    samples: Samples


def run(home: Path, *, out: Path | None, quick: bool, console: Console) -> Path:
    """Measure, print the tables to stdout, and return where the JSON was written.

    Args:
        home: keeps the demo's models between runs; everything else in it is made anew.
        console: for progress.

    Raises:
        ServerFailed, LoadError
    """
    size = QUICK if quick else FULL
    home = home.resolve()  # the servers run in another folder
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Progress(console=console, transient=True) as progress:
        demo = ensure_demo(home, progress)
    arguments = _engine_arguments(demo)
    with tempfile.TemporaryDirectory(dir=home) as folder, ExitStack() as stack:
        console.print("starting both servers")
        ours = stack.enter_context(_tenora(demo, Path(folder)))
        theirs = stack.enter_context(_vllm(demo, arguments, Path(folder)))
        rounds = _measure((ours, theirs), size, demo, console)
    machine = report.environment()
    content = {"workload": "overhead", **machine, **_settings(size, arguments), "rounds": [asdict(r) for r in rounds]}
    path = out or home / f"overhead-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    report.write(path, content)
    _print(rounds, size, report.describe(machine))
    return path


def _engine_arguments(demo: Demo) -> list[str]:
    from app.engine.instance import on_cpu  # imports vLLM, after the demo's training as that asks for

    settings = Settings(base_model_revision=None)
    engine = settings.engine.model_copy(update={"dtype": "float32"})
    settings = settings.model_copy(update={"engine": engine})
    return engine_arguments(settings, demo.base, served_name=_BASE_NAME, cpu=on_cpu())


@contextmanager
def _tenora(demo: Demo, folder: Path) -> Iterator[Server]:
    port = servers.free_port()
    env = servers.environment(
        TENORA_HOME=str(folder / "home"),
        TENORA_BASE_MODEL=str(demo.base),
        TENORA_BASE_MODEL_NAME=_BASE_NAME,
        TENORA_ENGINE__DTYPE="float32",
        TENORA_PORT=str(port),
    )
    admin_key = json.loads(servers.run_module("app.cli", "init", "--json", env=env))["key"]
    log = folder / "tenora.log"
    with servers.running("tenora", ["app.cli", "serve"], port=port, ready="/health/ready", env=env, log=log) as server:
        key = _publish(server, admin_key, demo.adapters[ADAPTER])
        server.headers["authorization"] = f"Bearer {key}"
        yield server


def _publish(server: Server, admin_key: str, adapter: Path) -> str:
    """Publish the adapter for a tenant of its name; returns a key of that tenant."""
    tenant = path_of("admin", "tenants", ADAPTER)
    with (
        Api(server.url, admin_key) as api,
        (adapter / _CONFIG_FILE).open("rb") as config,
        (adapter / _WEIGHTS_FILE).open("rb") as weights,
    ):
        api.call("POST", path_of("admin", "tenants"), {"slug": ADAPTER})
        api.upload(
            f"{tenant}{path_of('adapters', ADAPTER, 'versions')}", {_CONFIG_FILE: config, _WEIGHTS_FILE: weights}
        )
        return str(api.call("POST", f"{tenant}/keys", {"name": "benchmark"})["key"])


@contextmanager
def _vllm(demo: Demo, arguments: list[str], folder: Path) -> Iterator[Server]:
    port = servers.free_port()
    adapter = f"{ADAPTER}={demo.adapters[ADAPTER]}"
    command = [_RIVAL, *arguments, *_RIVAL_ARGUMENTS, "--lora-modules", adapter, "--port", str(port)]
    with servers.running(
        "vllm", command, port=port, ready="/health", env=servers.environment(), log=folder / "vllm.log"
    ) as server:
        yield server


def _measure(pair: Sequence[Server], size: Size, demo: Demo, console: Console) -> list[Round]:
    vocabulary = json.loads((demo.base / "config.json").read_text())["vocab_size"]
    prompts = _Prompts(vocabulary)
    rounds: list[Round] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(size.requests) * (size.rounds + 1) * len(pair))
        for concurrency, requests in size.requests.items():
            for server in pair:
                _load(server, prompts.take(2 * concurrency), concurrency)  # a round that does not count
                progress.advance(task)
            for number in range(1, size.rounds + 1):
                batch = prompts.take(requests)
                for server in pair:
                    rounds.append(_round(server, batch, concurrency, number))
                    progress.advance(task)
    return rounds


class _Prompts:
    """Random token ids: a prompt that came before would measure the prefix cache."""

    def __init__(self, vocabulary: int) -> None:
        self._random = random.Random(SEED)  # noqa: S311 - a benchmark wants the same numbers every time
        self._vocabulary = vocabulary

    def take(self, count: int) -> list[list[int]]:
        return [[self._random.randrange(self._vocabulary) for _ in range(INPUT_TOKENS)] for _ in range(count)]


def _round(server: Server, prompts: list[list[int]], concurrency: int, number: int) -> Round:
    before = server.cpu_s()
    samples = _load(server, prompts, concurrency)
    cpu_s = server.cpu_s() - before
    return Round(server.name, concurrency, number, report.measure(samples, cpu_s), cpu_s, samples)


def _load(server: Server, prompts: list[list[int]], concurrency: int) -> Samples:
    plan = Plan(
        "127.0.0.1", server.port, "/v1/completions", server.headers, ADAPTER, prompts, concurrency, OUTPUT_TOKENS
    )
    done = subprocess.run(
        [sys.executable, "-m", "app.bench.client"],
        cwd=_ROOT,
        input=json.dumps(asdict(plan)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LoadError(f"{server.name} at concurrency {concurrency}: {done.stderr[-2000:]}")
    return Samples(**json.loads(done.stdout))


def _settings(size: Size, arguments: list[str]) -> dict[str, Any]:
    return {
        "rounds_per_server": size.rounds,
        "requests_per_round": dict(size.requests),
        "input_tokens": INPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "seed": SEED,
        "tenora": {"serve": "tenora serve", "engine_arguments": arguments},
        "vllm": {"serve": f"python -m {_RIVAL}", "engine_arguments": arguments, "arguments": _RIVAL_ARGUMENTS},
    }


def _print(rounds: Sequence[Round], size: Size, machine: str) -> None:
    # A pipe has no width of its own, and the tables need this much.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(
        f"{machine}\none adapter, streamed, {INPUT_TOKENS} tokens in, {OUTPUT_TOKENS} out, greedy", soft_wrap=True
    )
    console.print(f"medians of {size.rounds} (smallest to largest), ratios of medians")
    for concurrency in size.requests:
        ours, theirs = (
            report.summarise([r.metrics for r in rounds if (r.server, r.concurrency) == (name, concurrency)])
            for name in ("tenora", "vllm")
        )
        console.print(report.table(f"concurrency {concurrency}", ours, theirs, ("tenora", "vllm")))
