"""A copy of a base with its linear weights rounded to fp8 and kept in bfloat16: a stand-in for fp8 on a CPU.

vLLM's build for CPUs has no kernels for fp8, and for int4 and int8 none that go with LoRA on every CPU. The copy shows
that the comparison bears the rounding of a quantised base. Only a GPU shows the quantised kernels.
"""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from app.verify.reference import round_to_fp8

_WEIGHTS, _INDEX = "*.safetensors", "model.safetensors.index.json"


def rounded_base(home: Path, base: Path) -> Path:
    """The copy in ``home``, made first unless it is there. The head is not rounded."""
    folder = home / "models" / f"{base.name}-fp8"
    if folder.exists():
        return folder
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(base, partial, ignore=shutil.ignore_patterns(_WEIGHTS, _INDEX))
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(base.glob(_WEIGHTS)):
        for name, tensor in load_file(file).items():
            weights = tensor.to(torch.bfloat16)
            tensors[name] = round_to_fp8(weights) if name.endswith("_proj.weight") else weights
    save_file(tensors, partial / "model.safetensors", {"format": "pt"})
    partial.rename(folder)
    return folder
