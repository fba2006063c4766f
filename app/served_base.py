"""Served base model: its files, public name and digest."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from adapters.errors import UnsupportedBase
from adapters.geometry import BaseGeometry, read_geometry
from app.planning.base import context_length
from app.settings import Settings
from app.support.chat_template import template_digest

#: Patterns of the files that vLLM reads of a model; never pickles.
_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]

_CONFIG, _INDEX = "config.json", "model.safetensors.index.json"
# A safetensors file begins with its header's length in 8 bytes. The library refuses headers beyond 100 MB too.
_LENGTH_BYTES, _MAX_HEADER_BYTES = 8, 100_000_000


class BaseNotFound(ValueError):
    """TENORA_BASE_MODEL names neither a folder nor a model that can be fetched."""


@dataclass(frozen=True, slots=True)
class ServedBase:
    """Base model on this disk: its folder, public name and the properties that adapters must match.

    Attributes:
        digest: identity of the base, see :func:`base_digest`.
        known_as: accepted names and paths: the public name, the setting's value and the name in its config.
        template_digest: digest of the chat template, see :func:`template_digest`; None without one.
        context: maximum tokens of a sequence, prompt and answer together.
    """

    path: Path
    name: str
    geometry: BaseGeometry
    digest: str
    known_as: frozenset[str]
    template_digest: str | None
    context: int


def open_base(settings: Settings) -> ServedBase:
    """Find the base model, fetch it from the hub if it is not on this disk, and read its geometry. Blocks.

    Raises:
        BaseNotFound: the folder or hub model does not exist, or the weights are not safetensors files.
        adapters.errors.UnsupportedBase: the model is not a Llama.
    """
    path = base_folder(settings)
    try:
        config = json.loads((path / "config.json").read_text())
    except FileNotFoundError:
        raise BaseNotFound(f"TENORA_BASE_MODEL: {path} has no config.json. Name a model's folder.") from None
    except ValueError:
        raise UnsupportedBase("config.json", "something else", "a JSON object") from None
    if not isinstance(config, dict):
        raise UnsupportedBase("config.json", type(config).__name__, "a JSON object")
    geometry = read_geometry(config, engine_dtype=settings.engine.dtype)
    return ServedBase(
        path,
        name := base_name(settings),
        geometry,
        base_digest(path),
        frozenset({name, settings.base_model or str(path), *_own_name(config)}),
        template_digest(path),
        settings.engine.max_model_len or context_length(config),
    )


def _own_name(config: dict[str, Any]) -> list[str]:
    """Return the name in the model's config, as a list of at most one."""
    name = config.get("_name_or_path")
    return [name] if isinstance(name, str) and name else []


def base_digest(folder: Path) -> str:
    """Return a SHA-256 (hex) that identifies a base model: over its config and the index of its weights. Blocks.

    Without an index file, the size and header of each safetensors file are hashed instead. The weights are not read,
    so two trainings with the same config and shapes have the same digest.

    Raises:
        BaseNotFound: a weight file is not a safetensors file.
    """
    digest = hashlib.sha256(b"tenora-base\n")
    index = folder / _INDEX
    parts = {_CONFIG: (folder / _CONFIG).read_bytes()}
    if index.is_file():
        parts[_INDEX] = index.read_bytes()
    else:
        parts |= {path.name: _outline(path) for path in sorted(folder.glob("*.safetensors"))}
    for name, content in parts.items():
        digest.update(f"{name}\n{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


def _outline(weights: Path) -> bytes:
    """Return a safetensors file's size and header."""
    size = weights.stat().st_size
    with weights.open("rb") as file:
        prefix = file.read(_LENGTH_BYTES)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < _LENGTH_BYTES or length > min(_MAX_HEADER_BYTES, size - _LENGTH_BYTES):
            raise BaseNotFound(f"TENORA_BASE_MODEL: {weights} of {size} bytes is not a complete safetensors file.")
        return f"{size}\n".encode() + file.read(length)


def base_name(settings: Settings) -> str:
    """Return the name by which callers request the base model."""
    return settings.base_model_name or Path(settings.base_model or demo_base(settings)).name


def demo_base(settings: Settings) -> Path:
    """Return the folder of the demo's base model."""
    return settings.home / "demo" / "base"


def base_folder(settings: Settings) -> Path:
    """Return the base's folder on this machine; fetch a hub model that is missing.

    Raises:
        BaseNotFound: there is no such folder or hub model.
    """
    folder = Path(settings.base_model) if settings.base_model else demo_base(settings)
    if folder.is_dir():
        return folder.resolve()
    if not settings.base_model or folder.is_absolute():
        raise BaseNotFound(f"TENORA_BASE_MODEL: there is no folder {folder}. Name a model's folder or a Hub id.")
    return Path(_snapshot(settings.base_model, settings.base_model_revision))


def _snapshot(repository: str, revision: str | None) -> str:
    try:
        try:
            return snapshot_download(repository, revision=revision, allow_patterns=_FILES, local_files_only=True)
        except LocalEntryNotFoundError:
            return snapshot_download(repository, revision=revision, allow_patterns=_FILES)
    except (OSError, HFValidationError) as error:
        raise BaseNotFound(
            f"TENORA_BASE_MODEL: {repository!r} is neither a folder nor a Hub id that can be fetched: {error}"
        ) from error
