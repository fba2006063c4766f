"""Where the base model's files are, and what callers call it."""

import json
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from adapters.errors import UnsupportedBase
from adapters.geometry import BaseGeometry, read_geometry
from app.settings import Settings

#: What vLLM reads of a model; never its pickles.
_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


class BaseNotFound(ValueError):
    """TENORA_BASE_MODEL names no folder and no model that can be had."""


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The base model on this disk: its folder, its public name and what adapters must fit."""

    path: Path
    name: str
    geometry: BaseGeometry


def open_base(settings: Settings) -> BaseModel:
    """Find the base model, fetching a hub id that is not on this disk yet, and read its geometry. Blocks.

    Raises:
        BaseNotFound: no such folder, or no such model in the hub.
        adapters.errors.UnsupportedBase: not a Llama.
    """
    path = _folder(settings)
    try:
        config = json.loads((path / "config.json").read_text())
    except FileNotFoundError:
        raise BaseNotFound(f"TENORA_BASE_MODEL: found no config.json in {path}, allowed a model's folder") from None
    except ValueError:
        raise UnsupportedBase("config.json", "something else", "a JSON object") from None
    if not isinstance(config, dict):
        raise UnsupportedBase("config.json", type(config).__name__, "a JSON object")
    geometry = read_geometry(config, engine_dtype=settings.engine.dtype)
    return BaseModel(path, base_name(settings), geometry)


def base_name(settings: Settings) -> str:
    """The name by which callers ask for the base model itself."""
    return settings.base_model_name or Path(settings.base_model or demo_base(settings)).name


def demo_base(settings: Settings) -> Path:
    """Where the demo's base model is kept."""
    return settings.home / "demo" / "base"


def _folder(settings: Settings) -> Path:
    folder = Path(settings.base_model) if settings.base_model else demo_base(settings)
    if folder.is_dir():
        return folder.resolve()
    if not settings.base_model or folder.is_absolute():
        raise BaseNotFound(f"TENORA_BASE_MODEL: found no folder {folder}, allowed a model's folder or a hub id")
    return Path(_snapshot(settings.base_model, settings.base_model_revision))


def _snapshot(repository: str, revision: str | None) -> str:
    try:
        try:
            return snapshot_download(repository, revision=revision, allow_patterns=_FILES, local_files_only=True)
        except LocalEntryNotFoundError:
            return snapshot_download(repository, revision=revision, allow_patterns=_FILES)
    except (OSError, HFValidationError) as error:
        raise BaseNotFound(
            f"TENORA_BASE_MODEL: found {repository!r}, allowed a folder, or a hub id that can be fetched ({error})"
        ) from error
