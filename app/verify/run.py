"""One verification: query the engine, score its answers with the reference, judge."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from app.verify.comparison import Answer, Verdict, judge
from app.verify.prompts import prompts
from app.verify.reference import Reference, special_ids

#: Gets a greedy answer from a running engine: (prompt, number of tokens) -> answer.
Ask = Callable[[Sequence[int], int], Answer]


def verify(
    ask: Ask,
    base: Path,
    adapter: Path | None,
    *,
    device: str,
    dtype: str,
    tokens: int,
    lengths: Sequence[int],
    fp8: bool = False,
) -> Verdict:
    """Compare a running engine with transformers and PEFT.

    Args:
        ask: queries the engine with the adapter, or with the base alone.
        base: folder of the base without quantization.
        adapter: folder of PEFT's two files, or None for the base alone.
        device: device of the reference, ``cpu`` or ``cuda``.
        dtype: dtype of the engine: ``bfloat16``, ``float16`` or ``float32``.
        tokens: number of tokens of each answer.
        lengths: prompt lengths in tokens.
        fp8: True if the engine serves the base in fp8.
    """
    answers = [ask(prompt, tokens) for prompt in prompts(*special_ids(base), lengths)]
    exact = Reference(base, adapter, device=device, dtype=torch.float32).scores(answers)
    if dtype == "float32" and not fp8:
        return judge(answers, exact)
    rounded = Reference(base, adapter, device=device, dtype=getattr(torch, dtype), fp8=fp8).scores(answers)
    return judge(answers, exact, rounded)
