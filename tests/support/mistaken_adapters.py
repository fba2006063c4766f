"""Folders that a new user pushes by mistake: incomplete, damaged, or no LoRA adapter."""

import json
import shutil
from pathlib import Path
from typing import Any

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def make_mistaken_folders(root: Path, good: Path) -> None:
    """Create the folders below ``root``, most of them from a good adapter with one change."""
    (root / "empty").mkdir(parents=True)
    _copy(good, root / "confonly")
    (root / "confonly" / WEIGHTS).unlink()
    _copy(good, root / "badrank", r=1000)
    _copy(good, root / "dora", use_dora=True)
    _copy(good, root / "badjson")
    (root / "badjson" / CONFIG).write_text("{")
    _copy(good, root / "pickle")
    (root / "pickle" / WEIGHTS).rename(root / "pickle" / "adapter_model.bin")
    (root / "base").mkdir()
    (root / "base" / "config.json").write_text("{}")


def _copy(good: Path, folder: Path, **changes: Any) -> None:
    shutil.copytree(good, folder)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | changes))
