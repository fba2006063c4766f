"""The base's own head, which PEFT saves beside a LoRA of the head unless it is told not to.

It changes nothing as long as it is the base's, which the engine has. Another one was trained as a whole, and is not
served.
"""

import json
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adapters.errors import Reason
from adapters.geometry import HEAD_MODULE, BaseGeometry
from adapters.modules import is_saved_head, misplaced
from adapters.weights import ITEM_BYTES, Header, Tensor, read_header

_INDEX = "model.safetensors.index.json"
_CHUNK_VALUES = 2**20


def check_saved_heads(
    file: BufferedIOBase, header: Header, geometry: BaseGeometry, *, adapted: bool, served: bool, base: Path | None
) -> list[Reason]:
    """Is each head that is saved as a whole the base's own?

    Args:
        file: the upload's weights.
        adapted: whether there are tensors of a LoRA of the head.
        served: whether the engine serves these; if not, that is the reason to give.
        base: the base's folder; None: it is not at hand, and no saved head is accepted.

    Raises:
        OSError, EOFError: a file could not be read.
    """
    reasons: list[Reason] = []
    for tensor in header.tensors:
        if not is_saved_head(tensor.name) or (adapted and not served):
            continue
        if not adapted or base is None or not _is_bases(file, header, tensor, base, geometry):
            reasons.append(misplaced(tensor.name))
    return reasons


def _is_bases(file: BufferedIOBase, header: Header, saved: Tensor, base: Path, geometry: BaseGeometry) -> bool:
    """Whether a tensor has the values of the base's head, as its own dtype has them."""
    name = "model.embed_tokens.weight" if geometry.tied else f"{HEAD_MODULE}.weight"
    weights = _holding(base, name)
    if saved.shape != (geometry.vocab, geometry.hidden) or weights is None:
        return False
    with weights.open("rb") as theirs:
        found, _ = read_header(theirs)
        tensors = {tensor.name: tensor for tensor in found.tensors} if found else {}
        if found is None or name not in tensors or tensors[name].shape != saved.shape:
            return False
        pairs = zip(_values(file, header, saved), _values(theirs, found, tensors[name]), strict=True)
        return all(np.array_equal(ours, _rounded(bases, saved.dtype)) for ours, bases in pairs)


def _holding(base: Path, name: str) -> Path | None:
    """The base's file that holds a tensor; None: its files are named in another way than transformers names them."""
    index, whole = base / _INDEX, base / "model.safetensors"
    if index.is_file():
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return base / str(files[name]) if name in files else None
    return whole if whole.is_file() else None


def _values(file: BufferedIOBase, header: Header, tensor: Tensor) -> Iterator[NDArray[np.float32]]:
    """A tensor's values, some at a time."""
    at, left = header.data_start + tensor.begin, tensor.elements
    while left:
        count = min(left, _CHUNK_VALUES)
        length = count * ITEM_BYTES[tensor.dtype]
        file.seek(at)
        raw = file.read(length)
        if len(raw) != length:
            raise EOFError("the file is shorter than its header says")
        if tensor.dtype == "F32":
            yield np.frombuffer(raw, "<f4")
        elif tensor.dtype == "F16":
            yield np.frombuffer(raw, "<f2").astype(np.float32)
        else:
            yield (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        at, left = at + length, left - count


def _rounded(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """The values as that dtype has them, to the nearest, of two the even one."""
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    if dtype == "BF16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return values
