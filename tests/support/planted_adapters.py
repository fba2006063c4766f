"""Adapters that pass every check of an upload and then misbehave: one answers nothing, one answers NaN."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from adapters.geometry import LINEAR_MODULES
from app.demo.recipe import Recipe
from app.engine.lifecycle.smoke_check import PROMPTS, long_prompt

_STEPS = 60
_LEARNING_RATE = 2e-2
_ROUNDS = 20
_PROJECTIONS = 100_000
#: More than a smoke check asks for.
_NEW_TOKENS = 6


def mute_adapter(base: Path, directory: Path, prompts: list[str]) -> Path:
    """Write an adapter that ends every answer before its first token; it is trained for seconds on these prompts."""
    torch.manual_seed(7)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=list(LINEAR_MODULES)),
    )
    lessons = [torch.tensor([tokenizer(prompt).input_ids]) for prompt in prompts]
    end = torch.tensor([tokenizer.eos_token_id])
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=_LEARNING_RATE)
    for step in range(_STEPS):
        logits = model(input_ids=lessons[step % len(lessons)]).logits[:, -1]
        torch.nn.functional.cross_entropy(logits, end).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(directory, save_embedding_layers=False)
    return directory


def nan_adapter(base: Path, directory: Path, prompt: str) -> Path:
    """Write an adapter of finite weights that passes the smoke check, and whose answers to one prompt are NaN.

    It adds ``4e38 (d h)`` to one gate of the first layer's MLP, beyond float32's range. ``d`` is chosen so that ``d h``
    is 1 at the prompt's end. It is -0.01 or less at all positions of the smoke check's prompts and their answers: there
    the gate is merely shut.
    """
    calm = [*PROMPTS, long_prompt(Recipe().context_length)]
    harmful = list(AutoTokenizer.from_pretrained(base)(prompt).input_ids)
    answers = [[*ids, 0] for ids in calm]
    # The answers to the calm prompts depend on the adapter, so iterate until they are stable.
    for _ in range(_ROUNDS):
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        states = torch.cat([_mlp_inputs(model, harmful)[-1:], *(_mlp_inputs(model, ids) for ids in answers)]).double()
        direction = _separating(states[0], states[1:])
        config = LoraConfig(task_type="CAUSAL_LM", r=1, lora_alpha=1, target_modules=["gate_proj"])
        adapter = get_peft_model(model, config)
        gate = adapter.base_model.model.model.layers[0].mlp.gate_proj
        with torch.no_grad():
            gate.lora_A["default"].weight.copy_(direction[None] * 2e19)
            gate.lora_B["default"].weight.zero_()[0, 0] = 2e19
        found = [_greedy(adapter, ids, _NEW_TOKENS) for ids in calm]
        if all(answer in answers for answer in found):
            break
        answers += found
    adapter.save_pretrained(directory, save_embedding_layers=False)
    return directory


def _separating(harmful: torch.Tensor, calm: torch.Tensor) -> torch.Tensor:
    """Direction ``d`` with ``d h`` of 1 at the harmful state, and between -0.5 and -0.01 at every calm one.

    Below -0.85 the gate would overflow too. Alternating projections onto the half-spaces (Agmon and Motzkin's
    relaxation method), the worst one first.

    Args:
        harmful: [hidden].
        calm: [states, hidden].
    """
    direction = harmful / harmful.dot(harmful)
    for _ in range(_PROJECTIONS):
        products = calm @ direction
        excess = torch.maximum(products + 0.01, -0.5 - products)
        worst = int(excess.argmax())
        if excess[worst] <= 0:
            break
        # Stay on the plane where the harmful state has 1.
        step = calm[worst] - harmful * (calm[worst].dot(harmful) / harmful.dot(harmful))
        sign = 1.0 if products[worst] > -0.01 else -1.0
        direction = direction - step * (sign * 1.5 * excess[worst] / step.dot(step))
    products = calm @ direction
    assert -0.8 < products.min() <= products.max() < 0, "no direction keeps the calm prompts finite"
    return direction


def _mlp_inputs(model: Any, ids: list[int]) -> torch.Tensor:
    """Return the inputs of the first layer's MLP at every position of these token ids, one row each."""
    seen: list[torch.Tensor] = []
    hook = model.model.layers[0].mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    hook.remove()
    return seen[0]


def _greedy(model: Any, prompt: Sequence[int], new_tokens: int) -> list[int]:
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(new_tokens):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids
