"""Weights in a pickle, turned into safetensors on the machine of their owner. Only tensors are read, no code is run."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.cli.folders import NoAdapter


def convert_weights(source: Path, target: Path) -> None:
    """Write the tensors of a file that ``torch.save`` wrote as safetensors. Needs torch.

    Raises:
        NoAdapter: torch is not there, or the file holds something else than named tensors.
        OSError
    """
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError:
        raise NoAdapter(
            "--convert needs torch and safetensors, which are not installed here: run `pip install torch safetensors`."
        ) from None
    try:
        found: Any = torch.load(source, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise NoAdapter(
            f"{source} holds more than tensors, or is damaged, so it is not read: save the adapter again with "
            f"`model.save_pretrained(FOLDER)` ({type(error).__name__})."
        ) from None
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in found.items()
    ):
        raise NoAdapter(f"{source} holds no tensors by name: save the adapter again with `model.save_pretrained`.")
    save_file({name: value.detach().clone().contiguous() for name, value in found.items()}, target)
