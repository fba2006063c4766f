"""Reference merges by PEFT itself: on a base with real weights, in this process, from the original files."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from tests.support.peft_adapters import tiny_llama

#: Arguments of each method, in addition to weights.
VARIANTS: tuple[dict[str, Any], ...] = (
    {"method": "linear"},
    {"method": "cat"},
    {"method": "svd"},
    {"method": "svd", "svd_rank": 6, "svd_full_matrices": False},
    {"method": "ties", "density": 0.3},
    {"method": "ties", "density": 1.0, "majority_sign_method": "frequency"},
    {"method": "dare_linear", "density": 0.7, "seed": 11},
    {"method": "dare_ties", "density": 0.2, "seed": 4294967295},
    {"method": "dare_ties", "density": 0.9, "seed": 0, "majority_sign_method": "frequency"},
    {"method": "magnitude_prune", "density": 0.5},
)


def save_real_base(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Save a tiny Llama with weights."""
    tiny_llama().to(dtype).save_pretrained(folder)
    return folder


def merge_by_peft(
    base: Path, sources: Sequence[Path], weights: Sequence[float], variant: Mapping[str, Any], folder: Path
) -> dict[str, torch.Tensor]:
    """Merge with PEFT, and return the saved tensors by name."""
    arguments = dict(variant)
    seed, method = arguments.pop("seed", None), arguments.pop("method")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = load_by_peft(base, sources)
        if seed is not None:
            torch.manual_seed(seed)
        names = [f"a{index}" for index in range(len(sources))]
        model.add_weighted_adapter(names, list(weights), "sum", combination_type=method, **arguments)
        model.save_pretrained(folder, selected_adapters=["sum"])
    return load_file(folder / "sum" / "adapter_model.safetensors")


def load_by_peft(base: Path, sources: Sequence[Path]) -> PeftModel:
    model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(base)
    first, *others = sources
    peft_model = PeftModel.from_pretrained(model, first, adapter_name="a0")
    for index, source in enumerate(others, 1):
        peft_model.load_adapter(source, adapter_name=f"a{index}")
    return peft_model


def differences(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors that differ in any bit or exist on one side only."""
    return sorted(
        name
        for name in found.keys() | expected.keys()
        if name not in found
        or name not in expected
        or found[name].dtype != expected[name].dtype
        or not torch.equal(found[name], expected[name])
    )


def edit_config(folder: Path, **changes: Any) -> Path:
    """Change keys of an adapter's config in place."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))
    return folder
