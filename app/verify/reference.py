"""Reference implementation for a verification: transformers and PEFT on a base and an adapter."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from app.verify.comparison import Answer, Scores


class Reference:
    """One base with at most one adapter.

    Args:
        base: the base's folder.
        adapter: folder of PEFT's two files, or None for the base alone.
        device: torch device name.
        dtype: dtype of the weights and of the arithmetic.
        fp8: round weights and inputs of the base's linear layers, except the head, to fp8.
    """

    def __init__(
        self,
        base: Path,
        adapter: Path | None,
        *,
        device: str,
        dtype: torch.dtype,
        fp8: bool = False,
    ) -> None:
        logging.disable_progress_bar()
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, local_files_only=True)
        if fp8:
            _round_linear_layers(model)
        if adapter is not None:
            model = PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False).to(dtype)
        self._model, self._device = model.to(device).eval(), device

    def scores(self, answers: Sequence[Answer]) -> list[Scores]:
        """Score each answer in one forward pass, with teacher forcing on the engine's tokens."""
        with torch.inference_mode():
            return [self._score(answer) for answer in answers]

    def _score(self, answer: Answer) -> Scores:
        ids = torch.tensor([[*answer.prompt, *answer.tokens[:-1]]], device=self._device)
        logits = self._model(input_ids=ids, logits_to_keep=len(answer.tokens)).logits[0]
        logprobs = logits.float().log_softmax(-1)
        tokens = torch.tensor(answer.tokens, device=self._device).unsqueeze(1)
        best_logprobs, best = logprobs.max(-1)
        token_logprobs = logprobs.gather(1, tokens).squeeze(1)
        return Scores(*(tuple(values.tolist()) for values in (token_logprobs, best, best_logprobs)))


def _round_linear_layers(model: torch.nn.Module) -> None:
    """Round weights by row and inputs by token, as fp8 kernels do."""
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            layer.weight.data = round_to_fp8(layer.weight.data)
            layer.register_forward_pre_hook(lambda _layer, inputs: (round_to_fp8(inputs[0]),))


def round_to_fp8(values: torch.Tensor) -> torch.Tensor:
    """Round to the nearest float8 e4m3 number, with one scale per row given by its largest element."""
    scale = values.abs().amax(-1, keepdim=True).clamp(min=1e-8) / torch.finfo(torch.float8_e4m3fn).max
    return (values / scale).to(torch.float8_e4m3fn).to(values.dtype) * scale


def context_of(base: Path) -> int:
    """Return a base's context length in tokens."""
    return int(AutoConfig.from_pretrained(base, local_files_only=True).max_position_embeddings)


def special_ids(base: Path) -> tuple[int, frozenset[int]]:
    """Return the vocabulary size of a base's tokenizer and the ids of its special tokens."""
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    return len(tokenizer), frozenset(tokenizer.all_special_ids)
