"""Find an adapter's files on this machine: the folder or archive to push.

Each error is one sentence with the next step.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tenora_client.errors import TenoraError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")

_CHECKPOINT = re.compile(r"checkpoint-([0-9]{1,12})", re.ASCII)
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_MAX_DEPTH, _MAX_FOLDERS = 6, 10_000

_NEEDED = f"{CONFIG_FILE} and {WEIGHTS_FILE}, as `model.save_pretrained(FOLDER)` writes them"


class NoAdapter(TenoraError):
    """No adapter to push. The message is a sentence for people."""


def find_adapter(path: Path, *, convert: bool = False) -> Path:
    """Find the folder that holds an adapter's two files, or return the archive itself.

    A folder without an adapter at its top is searched. The adapter at the shallowest level wins.

    Args:
        convert: accept weights in a pickle.

    Raises:
        NoAdapter: no adapter, or several of them, are there.
        OSError: a folder or file cannot be read.
    """
    if not path.exists():
        raise NoAdapter(f"{path} does not exist. Give the folder that holds {_NEEDED}, or a .tar.gz or .zip of it.")
    if not path.is_dir():
        _check_archive(path)
        return path
    if _has_adapter(path, convert=convert):
        return path
    folders = _below(path, convert=convert)
    _refuse_checkpoints(path, folders)
    if len(folders) > 1:
        raise NoAdapter(f"{path} holds several adapters, such as {folders[0]} and {folders[1]}. Push one of them.")
    if not folders:
        raise NoAdapter(_missing(path))
    return folders[0]


def weights_of(folder: Path) -> Path:
    """Return the file with the weights: safetensors, else a pickle.

    Raises:
        NoAdapter: the folder has neither.
    """
    names = (name for name in (WEIGHTS_FILE, *PICKLES) if (folder / name).is_file())
    name = next(names, None)
    if name is None:
        raise NoAdapter(_missing(folder))
    return folder / name


def _has_adapter(folder: Path, *, convert: bool) -> bool:
    weights = (WEIGHTS_FILE, *PICKLES) if convert else (WEIGHTS_FILE,)
    return (folder / CONFIG_FILE).is_file() and any((folder / name).is_file() for name in weights)


def _below(path: Path, *, convert: bool) -> list[Path]:
    """Return the folders with an adapter at the shallowest level that has one."""
    level, visited = [path], 0
    for _ in range(_MAX_DEPTH):
        level = [child for folder in level for child in _folders(folder)]
        visited += len(level)
        with_adapter = [folder for folder in level if _has_adapter(folder, convert=convert)]
        if with_adapter or visited > _MAX_FOLDERS:
            return with_adapter
    return []


def _folders(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return (folder / name for name in names if name != "__MACOSX")


def _refuse_checkpoints(path: Path, folders: list[Path]) -> None:
    """Refuse a folder of training checkpoints. The user chooses one. The message proposes the newest."""
    steps = {folder: int(match[1]) for folder in folders if (match := _CHECKPOINT.fullmatch(folder.name))}
    if steps and len(steps) == len(folders):
        newest = max(steps, key=lambda folder: steps[folder])
        raise NoAdapter(
            f"{path} holds checkpoints of a training, but no final adapter. Push the newest one, {newest}, or save the "
            "final adapter there with `model.save_pretrained`."
        )


def _check_archive(path: Path) -> None:
    """Check that the file is an archive that can be pushed.

    Raises:
        NoAdapter: the file is not such an archive.
    """
    if path.name in (CONFIG_FILE, WEIGHTS_FILE):
        raise NoAdapter(f"{path} is one of an adapter's two files. Push its folder, {path.parent}.")
    with path.open("rb") as file:
        magic = file.read(4)
    if path.suffix in {".bin", ".pt", ".pth", ".ckpt"}:
        raise NoAdapter(f"{path} is a pickle. Push its folder with --convert: `push {path.parent} --convert`.")
    if not magic.startswith((_GZIP, _ZIP)):
        raise NoAdapter(f"{path} is neither a folder nor a .tar.gz or .zip. Give the folder that holds {_NEEDED}.")


def _missing(folder: Path) -> str:
    has_config = (folder / CONFIG_FILE).is_file()
    pickle = next((name for name in PICKLES if (folder / name).is_file()), None)
    if has_config and pickle:
        return (
            f"{folder / pickle} is a pickle, and reading a pickle can run code. Push again with --convert, which turns "
            "it into safetensors on this machine."
        )
    if has_config:
        return f"{folder} has {CONFIG_FILE} but no {WEIGHTS_FILE}. Save the adapter again with `model.save_pretrained`."
    if (folder / WEIGHTS_FILE).is_file() or pickle:
        return f"{folder} has weights but no {CONFIG_FILE}. Save the adapter again with `model.save_pretrained`."
    if (folder / "config.json").is_file():
        return (
            f"{folder} holds a whole model, not an adapter. Tenora serves LoRA adapters on one base. Push the folder "
            "that PEFT's `model.save_pretrained(FOLDER)` wrote."
        )
    return f"{folder} holds no adapter. Give the folder that holds {_NEEDED}, or a .tar.gz or .zip of it."
