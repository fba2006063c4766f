"""transformers and PEFT on a base and an adapter, as the reference of :mod:`app.verify.comparison`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from app.verify.comparison import Answer, Scores


class Reference:
    """One base with at most one adapter.

    Args:
        base: its folder.
        adapter: folder of PEFT's two files, or None for the base alone.
        device: as torch names it.
        dtype: of the weights and of the arithmetic.
    """

    def __init__(self, base: Path, adapter: Path | None, *, device: str, dtype: torch.dtype) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, local_files_only=True)
        if adapter is not None:
            model = PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False).to(dtype)
        self._model, self._device = model.to(device).eval(), device

    def scores(self, answers: Sequence[Answer]) -> list[Scores]:
        """Go over each answer once, with the engine's own tokens before each of its tokens."""
        with torch.inference_mode():
            return [self._score(answer) for answer in answers]

    def _score(self, answer: Answer) -> Scores:
        ids = torch.tensor([[*answer.prompt, *answer.tokens[:-1]]], device=self._device)
        logits = self._model(input_ids=ids, logits_to_keep=len(answer.tokens)).logits[0]
        logprobs = logits.float().log_softmax(-1)
        tokens = torch.tensor(answer.tokens, device=self._device).unsqueeze(1)
        best_logprobs, best = logprobs.max(-1)
        found = logprobs.gather(1, tokens).squeeze(1)
        return Scores(*(tuple(values.tolist()) for values in (found, best, best_logprobs)))


def context_of(base: Path) -> int:
    """Tokens that a sequence of a base may have."""
    return int(AutoConfig.from_pretrained(base, local_files_only=True).max_position_embeddings)


def special_ids(base: Path) -> tuple[int, frozenset[int]]:
    """Number of tokens of a base's tokenizer, and its special ones."""
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    return len(tokenizer), frozenset(tokenizer.all_special_ids)
