"""Parent side of the merging process: start it, wait for it, and never leave it behind."""

import asyncio
import dataclasses
import json
import logging
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from adapters.errors import Reason
from app.domain.errors import MergeFailed, MergeRejected

logger = logging.getLogger(__name__)

_ROOT = Path(__file__).resolve().parents[2]

# The child has a low priority, so inference may delay it. Wall-clock time is the last resort.
_WALL_PER_CPU_SECOND = 5
_WALL_GRACE_S = 60

#: Environment variables that the child inherits: the library path for torch, and nothing else.
_INHERITED = ("LD_LIBRARY_PATH",)


@dataclasses.dataclass(frozen=True, slots=True)
class ChildLimits:
    """Resource limits of the child.

    Attributes:
        cpu_seconds: CPU time of all its threads together.
        address_bytes: address space, including torch's libraries.
        file_bytes: size of the largest file that it may write.
    """

    cpu_seconds: float
    address_bytes: int
    file_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Versions:
    """Versions of the libraries that made the result."""

    peft: str
    torch: str


async def merge_in_child(job: dict[str, Any], limits: ChildLimits) -> Versions:
    """Run a job (the fields of :class:`app.merging.run.Job`) and leave the result's files in its folder.

    After a cancellation this returns only when the child has ended, so that no process writes into the folder any more.

    Raises:
        MergeRejected: with every reason that only the sources' tensors show.
        MergeFailed: the child was stopped by its limits, or ended with an error.
    """
    request = {"job": job, "limits": dataclasses.asdict(limits) | {"cpu_seconds": math.ceil(limits.cpu_seconds)}}
    child = _start(Path(job["folder"]))
    wall_s = limits.cpu_seconds * _WALL_PER_CPU_SECOND + _WALL_GRACE_S
    talk = asyncio.ensure_future(asyncio.to_thread(_talk, child, json.dumps(request), wall_s))
    try:
        answer = await asyncio.shield(talk)
    except asyncio.CancelledError:
        child.kill()
        await asyncio.wait([talk])
        raise
    if answer is None:
        raise MergeFailed(_failure(child.returncode, limits))
    if answer["reasons"]:
        raise MergeRejected(tuple(Reason.read(reason) for reason in answer["reasons"]))
    return Versions(**answer["versions"])


def _start(folder: Path) -> subprocess.Popen[str]:
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment |= {
        "PYTHONPATH": str(_ROOT),
        # No downloads, no cache outside the folder, and no GPU: that belongs to the engine.
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "huggingface"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.Popen(
        [sys.executable, "-B", "-s", "-m", "app.merging"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=_ROOT,
        env=environment,
        # A signal to the server's process group must not kill a merge that the server still drains.
        start_new_session=True,
    )


def _talk(child: subprocess.Popen[str], request: str, wall_s: float) -> dict[str, Any] | None:
    """Send the request and return the child's answer. Return None if it ended without one. Blocks."""
    with child:
        try:
            output, errors = child.communicate(request, timeout=wall_s)
        except subprocess.TimeoutExpired:
            child.kill()
            output, errors = child.communicate()
    if child.returncode != 0:
        logger.warning("The merging process ended with status %d: %s", child.returncode, errors[-4000:])
        return None
    answer: dict[str, Any] = json.loads(output)
    return answer


def _failure(status: int, limits: ChildLimits) -> str:
    end = f"was stopped by {signal.Signals(-status).name}" if status < 0 else "stopped with an error"
    return (
        f"The merging process {end}. Its limits are {limits.cpu_seconds:g} s of CPU time, "
        f"{limits.address_bytes} bytes of address space and {limits.file_bytes} bytes for a file."
    )
