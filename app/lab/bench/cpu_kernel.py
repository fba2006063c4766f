"""``python -m app.lab.bench.cpu_kernel``: cost of idle LoRA slots per step on a CPU.

It runs the LoRA work of one decode step without the engine: a Llama of hidden size 128 with 4 layers, rank 8 in slots
of rank 64. The same tokens and adapters run with growing numbers of slots, interleaved, and the fastest of many rounds
counts. The growth is the price of idle slots. The constants of :mod:`app.planning.slots` come from here.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from app.engine.vllm.worker.cpu_lora import GroupedPunicaWrapper, lay_out

SLOTS = (16, 64, 256, 1024, 4096)
#: Tokens of the step, and number of adapters that they use.
BATCHES = ((8, 1), (32, 4), (32, 16), (128, 16))
ROUNDS = 40

_HIDDEN, _INTERMEDIATE, _LAYERS, _RANK, _SLOT_RANK = 128, 256, 4, 8, 64
#: Input and output sizes of the linear layers as vLLM merges them.
_MODULES = (
    (_HIDDEN, (_HIDDEN, _HIDDEN, _HIDDEN)),
    (_HIDDEN, (_HIDDEN,)),
    (_HIDDEN, (_INTERMEDIATE, _INTERMEDIATE)),
    (_INTERMEDIATE, (_HIDDEN,)),
)


@dataclass(frozen=True, slots=True)
class Price:
    """Cost of a step's LoRA work.

    Attributes:
        seconds: fastest time of all rounds in seconds, by number of slots.
    """

    tokens: int
    adapters: int
    seconds: dict[int, float]

    @property
    def idle_slot_s(self) -> float:
        """Seconds that each additional slot adds."""
        fewest, most = min(self.seconds), max(self.seconds)
        return (self.seconds[most] - self.seconds[fewest]) / (most - fewest)


class Step:
    """LoRA work of one step. All slots are taken, a few of them are used."""

    def __init__(self, slots: int, tokens: int, adapters: int) -> None:
        self._ids: list[int | None] = list(range(1, slots + 1))
        used = [index * slots // adapters for index in range(adapters)]
        slots_by_token = tuple(used[token % adapters] + 1 for token in range(tokens))
        self._mapping = SimpleNamespace(index_mapping=slots_by_token, prompt_mapping=slots_by_token, is_prefill=True)
        self._wrapper = GroupedPunicaWrapper(
            tokens,
            tokens,
            torch.device("cpu"),
            max_rank=_SLOT_RANK,
            rank_of=lambda _: _RANK,
            is_finite=lambda: True,
        )
        self._layers = [
            [(_matrices(slots, used, inputs, outputs), inputs, outputs) for inputs, outputs in _MODULES]
            for _ in range(_LAYERS)
        ]
        self._x = {inputs: torch.randn(tokens, inputs, dtype=torch.bfloat16) for inputs, _ in _MODULES}
        self._y = {outputs: torch.zeros(tokens, sum(outputs), dtype=torch.bfloat16) for _, outputs in _MODULES}

    def seconds(self) -> float:
        began = time.perf_counter()
        self._wrapper.update_metadata(self._mapping, self._ids, len(self._ids), 1)
        for layer in self._layers:
            for (a, b), inputs, outputs in layer:
                self._wrapper.add_lora_linear(self._y[outputs], self._x[inputs], a, b, 1.0, outputs)
        return time.perf_counter() - began


def measure(tokens: int, adapters: int, *, slots: Sequence[int] = SLOTS, rounds: int = ROUNDS) -> Price:
    """Measure steps with these numbers of tokens and adapters, interleaving all numbers of slots."""
    steps = {count: Step(count, tokens, adapters) for count in slots}
    fastest = dict.fromkeys(slots, float("inf"))
    with torch.inference_mode():
        for _ in range(rounds):
            for count, step in steps.items():
                fastest[count] = min(fastest[count], step.seconds())
    return Price(tokens, adapters, fastest)


def _matrices(slots: int, used: list[int], inputs: int, outputs: tuple[int, ...]) -> Any:
    """LoRA A and B in the worker's layout. The pages of unused slots are never touched."""
    a = tuple(torch.zeros(slots, 1, _SLOT_RANK, inputs, dtype=torch.bfloat16) for _ in outputs)
    b = tuple(lay_out(torch.zeros(slots, 1, width, _SLOT_RANK, dtype=torch.bfloat16)) for width in outputs)
    for slot in used:
        for matrix in a:
            matrix[slot, 0, :_RANK].normal_()
        for matrix in b:
            matrix[slot, 0, :, :_RANK].normal_()
    return a, b


def main() -> None:
    for tokens, adapters in BATCHES:
        price = measure(tokens, adapters)
        row = {"tokens": tokens, "adapters": adapters, "idle_slot_us": round(price.idle_slot_s * 1e6, 2)}
        print(json.dumps(row | {f"{slots}_ms": round(s * 1e3, 2) for slots, s in price.seconds.items()}))  # noqa: T201


if __name__ == "__main__":
    main()
