"""Child processes for untrusted bytes, with limits on CPU time and memory and a minimal environment."""

import dataclasses
import json
import logging
import math
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.archive import Unpacked
from adapters.errors import AdapterRejected, Reason, ValidationFailed
from adapters.geometry import BaseGeometry
from adapters.stores.files import disk_errors
from adapters.validation import Verdict, read_verdict

_log = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parent.parent

# Wall-clock limit as the last resort. The child yields to inference, so wall time says little about the file.
_WALL_PER_CPU_SECOND = 5
_WALL_GRACE_S = 60

# Room for a rewritten config, and for the growth of a header whose names become longer.
_NORMAL_BYTES = 8 * 2**20

# BLAS threads reserve address space for each core, which would exceed the limit on it.
_ENVIRONMENT = {"PYTHONPATH": str(_ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def validate_in_child(
    config: Path,
    weights: Path,
    geometry: BaseGeometry,
    max_lora_rank: int,
    *,
    base_name: str = "this base",
    cpu_seconds: float,
    address_bytes: int,
    head: bool = False,
    base: Path | None = None,
    normal: Path | None = None,
    whole_bytes: int | None = None,
) -> Verdict:
    """Run :func:`adapters.validation.validate` in a child process. Blocks: call it in a thread.

    The child runs at a lower priority than this process. It may write no file. With ``normal`` it may write files
    slightly larger than the upload's.

    Args:
        cpu_seconds: CPU time for the child, in seconds, rounded up.
        address_bytes: address space for the child, in bytes.
        whole_bytes: size of the whole weights file, if ``weights`` holds only its header.

    Raises:
        ValidationFailed: the child ended without a verdict.
        DiskFull, StoreUnavailable: this node's disk has no room for the normal form, or failed.
    """
    request = {
        "config": str(config.resolve()),
        "weights": str(weights.resolve()),
        "geometry": dataclasses.asdict(geometry),
        "max_lora_rank": max_lora_rank,
        "base_name": base_name,
        "head": head,
        "base": str(base.resolve()) if base else None,
        "normal": str(normal.resolve()) if normal else None,
        "whole_bytes": whole_bytes,
        "file_bytes": weights.stat().st_size + _NORMAL_BYTES if normal else 0,
    }
    answer = _run("adapters.validation", request, cpu_seconds, address_bytes)
    _check_disk(answer, "validate the upload")
    return read_verdict(answer)


def inspect_in_child(config: Path, *, cpu_seconds: float, address_bytes: int) -> tuple[Reason, ...]:
    """Check a config without its weights in a child process, with the validator's kind of limits. Blocks.

    Returns:
        The reasons against it; empty if there are none.

    Raises:
        ValidationFailed: the child ended without an answer.
    """
    answer = _run("adapters.config_check", {"config": str(config.resolve())}, cpu_seconds, address_bytes)
    return tuple(Reason.read(reason) for reason in answer["reasons"])


def unpack_in_child(
    archive: Path,
    folder: Path,
    *,
    config_bytes: int,
    weights_bytes: int,
    cpu_seconds: float,
    address_bytes: int,
) -> Mapping[str, Unpacked]:
    """Run :func:`adapters.archive.unpack` in a child process, with the validator's kind of limits. Blocks.

    Raises:
        AdapterRejected: the archive is refused; carries every reason that can be known.
        ValidationFailed: the child ended without an answer; it may have left files in ``folder``.
        DiskFull, StoreUnavailable: this node's disk has no room, or failed.
    """
    request = {
        "archive": str(archive.resolve()),
        "folder": str(folder.resolve()),
        "config_bytes": config_bytes,
        "weights_bytes": weights_bytes,
    }
    answer = _run("adapters.archive", request, cpu_seconds, address_bytes)
    if "reasons" in answer:
        raise AdapterRejected(tuple(Reason.read(reason) for reason in answer["reasons"]))
    _check_disk(answer, "unpack the upload")
    return {name: Unpacked(folder / name, **file) for name, file in answer["files"].items()}


def _check_disk(answer: dict[str, Any], work: str) -> None:
    if "errno" in answer:
        with disk_errors(work):
            raise OSError(answer["errno"], "The child process could not read or write a file.")


def _run(module: str, request: dict[str, Any], cpu_seconds: float, address_bytes: int) -> dict[str, Any]:
    """Run ``python -m module`` with the request on its standard input, and parse its output."""
    limits = {"cpu_seconds": math.ceil(cpu_seconds), "address_bytes": address_bytes}
    try:
        child = subprocess.run(
            [sys.executable, "-B", "-s", "-m", module],
            input=json.dumps(request | limits),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=cpu_seconds * _WALL_PER_CPU_SECOND + _WALL_GRACE_S,
            cwd=_ROOT,
            env=_ENVIRONMENT,
            # A new session keeps group signals away from the child: a draining server still needs its answer.
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ValidationFailed("The upload was not validated: the validator did not end in time.") from error
    if child.returncode != 0:
        _log.warning("The validator ended with status %d: %s", child.returncode, child.stderr[-2000:])
        limits_text = f"It may use {cpu_seconds:g} s of CPU time and {address_bytes} bytes of address space."
        raise ValidationFailed(f"The upload was not validated: the validator {_death(child.returncode)}. {limits_text}")
    answer: dict[str, Any] = json.loads(child.stdout)
    return answer


def _death(status: int) -> str:
    if status >= 0:
        return "stopped with an error"
    return f"was stopped by {signal.Signals(-status).name}"
