"""Convert pickled weights to safetensors on the owner's machine. It reads tensors only and runs no code."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class UnreadableWeights(ValueError):
    """The weights cannot be converted. The message says what to do."""


def convert_weights(source: Path, target: Path) -> None:
    """Write the tensors of a ``torch.save`` file as safetensors. Needs torch.

    Raises:
        UnreadableWeights: torch is not installed, or the file holds anything but named tensors.
        OSError: a file cannot be read or written.
    """
    # The command line imports this module, and most machines that it runs on have no torch.
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError:
        raise UnreadableWeights(
            "--convert needs torch and safetensors, which are not installed here. Run `pip install torch safetensors`."
        ) from None
    try:
        tensors: Any = torch.load(source, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise UnreadableWeights(
            f"{source} is damaged or holds more than tensors ({type(error).__name__}). Save the adapter again with "
            "`model.save_pretrained(FOLDER)`."
        ) from None
    if not isinstance(tensors, Mapping) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in tensors.items()
    ):
        raise UnreadableWeights(
            f"{source} does not hold tensors by name. Save the adapter again with `model.save_pretrained`."
        )
    save_file({name: value.detach().clone().contiguous() for name, value in tensors.items()}, target)
