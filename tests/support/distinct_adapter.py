"""Adapters whose files no other version has."""

import json
import shutil
from pathlib import Path

from safetensors.numpy import load_file, save_file


def unlike_any_other(source: Path, folder: Path) -> Path:
    """Copy an adapter so that no other version shares its two files."""
    shutil.copytree(source, folder)
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in weights.items()}, folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"revision": "of this test alone"}))
    return folder
