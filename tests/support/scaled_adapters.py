"""Adapters with scaled weights, and their upload."""

import json
from pathlib import Path

import httpx
from safetensors.torch import load_file, save_file
from torch import Tensor


def scaled(source: Path, directory: Path, factor: float) -> Path:
    """Copy an adapter with its lora_B multiplied."""

    def change(name: str, tensor: Tensor) -> Tensor:
        return tensor * factor if "lora_B" in name else tensor

    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    tensors = load_file(source / "adapter_model.safetensors")
    changed = {name: change(name, tensor).contiguous() for name, tensor in tensors.items()}
    save_file(changed, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    return directory


def publish(client: httpx.Client, adapter: str, directory: Path, **options: object) -> httpx.Response:
    files = {
        name: (name, (directory / name).read_bytes()) for name in ("adapter_config.json", "adapter_model.safetensors")
    }
    return client.post(
        f"/v1/adapters/{adapter}/versions", files=files | {"options": ("options", json.dumps(options).encode())}
    )
