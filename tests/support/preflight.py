"""Bodies of preflights: a config, the beginning of a weights file, and options."""

import json
from typing import Any

from tests.support.serving import PeftFiles

Form = dict[str, tuple[str, bytes]]


def head_of(weights: bytes) -> bytes:
    """Return the beginning of a safetensors file, up to the end of its header."""
    return weights[: 8 + int.from_bytes(weights[:8], "little")]


def form(config: bytes, head: bytes, **options: Any) -> Form:
    """Return the parts of a preflight in the form that httpx takes."""
    return {
        "adapter_config.json": ("x", config),
        "adapter_model.safetensors": ("x", head),
        "options": ("x", json.dumps(options).encode()),
    }


def preflight_of(files: PeftFiles, /, **options: Any) -> Form:
    """Return the preflight of two files."""
    return form(files.config, head_of(files.weights), **{"weights_bytes": len(files.weights)} | options)
