"""Paired rounds: Tenora and vLLM's own server in turn, each started fresh with the same engine arguments."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import Progress

from adapters.cache import WEIGHTS_NAME
from app.lab.bench import rivals
from app.lab.bench.servers import Server
from app.lab.bench.timeline import Served

SIDES = ("tenora", "vllm")

#: Host memory per adapter, as a multiple of the largest adapter's bytes.
_ROOM = 1.1


@dataclass(frozen=True, slots=True)
class Setup:
    """Configuration that both sides serve.

    Attributes:
        home: folder that keeps published adapters between runs.
        base: folder of the base model.
        adapters: folder by adapter name.
        slots: number of LoRA slots (``max_loras``).
        host_adapters: number of adapters that fit into host memory in addition to the slots.
        max_rank: rank of the slots.
        dtype: dtype of the base and the slots. Adapters are float32 on disk and are staged in this dtype.
        sequences: maximum number of running sequences (``max_num_seqs``), None for vLLM's default.
        tenants: tenant slug by adapter name. Adapters left out belong to one tenant.
        register: True if vLLM loads the adapters before it is ready.
    """

    home: Path
    base: Path
    adapters: Mapping[str, Path]
    slots: int
    host_adapters: int
    max_rank: int
    dtype: str
    sequences: int | None = None
    tenants: Mapping[str, str] = field(default_factory=dict)
    register: bool = True

    @property
    def settings(self) -> dict[str, str]:
        """Tenora's settings. vLLM's arguments are derived from them."""
        on_disk = max((path / WEIGHTS_NAME).stat().st_size for path in self.adapters.values())
        staged = on_disk if self.dtype == "float32" else on_disk / 2
        extra = {} if self.sequences is None else {"TENORA_ENGINE__EXTRA_ARGS": f'{{"max_num_seqs": {self.sequences}}}'}
        return extra | {
            "TENORA_ENGINE__DTYPE": self.dtype,
            "TENORA_ENGINE__MAX_LORAS": str(self.slots),
            "TENORA_ENGINE__MAX_LORA_RANK": str(self.max_rank),
            "TENORA_ENGINE__HOST_BYTES": str(max(2**20, int(_ROOM * staged * self.host_adapters))),
        }

    @property
    def vllm_arguments(self) -> list[str]:
        """Arguments of vLLM's own server."""
        return rivals.vllm_arguments(
            self.base, slots=self.slots, host_adapters=self.host_adapters, settings=self.settings
        )


@dataclass(frozen=True, slots=True)
class Round:
    """One part of one round against one server.

    Attributes:
        part: part of the workload.
        figures: metrics by name.
        served: samples.
        details: values for the plot.
    """

    server: str
    number: int
    part: str
    figures: Mapping[str, float]
    served: Sequence[Served]
    details: Mapping[str, float] = field(default_factory=dict)


#: Measurement of one server in one round. The folder holds the server's files.
Measure = Callable[[Server, int, Path], list[Round]]


class Prompts:
    """Random token ids. A repeated prompt would measure the prefix cache."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a benchmark wants the same numbers every time
        self._vocabulary = range(vocabulary)

    def take(self, length: int) -> list[int]:
        return self._random.choices(self._vocabulary, k=length)

    def length(self, lengths: tuple[int, int]) -> int:
        """Draw a length from a half-open range."""
        return self._random.randrange(*lengths)


def alternate(setup: Setup, rounds: int, sides: Sequence[str], measure: Measure, console: Console) -> list[Round]:
    """Measure the sides in turn, round by round.

    Raises:
        ServerFailed, NotMeasured, LoadError
    """
    results: list[Round] = []
    with TemporaryDirectory(dir=setup.home) as here, Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=rounds * len(sides))
        for number in range(1, rounds + 1):
            for side in sides:
                folder = Path(here) / f"{side}-{number}"
                with _started(side, setup, folder) as server:
                    for result in measure(server, number, folder):
                        results.append(result)
                        values = ", ".join(f"{name} {value:.4g}" for name, value in result.figures.items())
                        console.print(f"round {number}, {side}, {result.part}: {values}", highlight=False)
                progress.advance(task)
    return results


@contextmanager
def _started(side: str, setup: Setup, folder: Path) -> Iterator[Server]:
    if side == "tenora":
        with rivals.tenora(
            setup.base,
            setup.adapters,
            home=setup.home,
            folder=folder,
            tenants=setup.tenants,
            settings=setup.settings,
        ) as server:
            yield server
    else:
        with rivals.vllm(
            setup.base, setup.adapters, arguments=setup.vllm_arguments, folder=folder, register=setup.register
        ) as server:
            yield server
