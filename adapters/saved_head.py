"""Full copies of the head in an upload: PEFT saves one with a LoRA of the head unless told otherwise.

A copy that equals the base's head changes nothing, and the engine has those weights. A different head was trained as a
whole and is not served.
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
    file: BufferedIOBase,
    header: Header,
    geometry: BaseGeometry,
    *,
    adapted: bool,
    served: bool,
    base: Path | None,
    has_values: bool = True,
) -> list[Reason]:
    """Check that each full copy of the head equals the base's head.

    Args:
        file: the upload's weights.
        adapted: whether the upload has LoRA tensors for the head.
        served: whether the engine serves such tensors; if not, another check gives that reason.
        base: folder of the base; None if it is not available, and then every saved head is refused.
        has_values: whether ``file`` holds the tensors' values; if not, only shapes are compared.

    Raises:
        OSError, EOFError: a file could not be read.
    """
    reasons: list[Reason] = []
    for tensor in header.tensors:
        if not is_saved_head(tensor.name) or (adapted and not served):
            continue
        if (
            not adapted
            or base is None
            or tensor.shape != (geometry.vocab, geometry.hidden)
            or (has_values and not _is_bases(file, header, tensor, base, geometry))
        ):
            reasons.append(misplaced(tensor.name))
    return reasons


def _is_bases(file: BufferedIOBase, header: Header, saved: Tensor, base: Path, geometry: BaseGeometry) -> bool:
    """Return whether a tensor equals the base's head after rounding to the tensor's dtype."""
    name = "model.embed_tokens.weight" if geometry.tied else f"{HEAD_MODULE}.weight"
    weights = _holding(base, name)
    if weights is None:
        return False
    with weights.open("rb") as base_file:
        base_header, _ = read_header(base_file)
        tensors = {tensor.name: tensor for tensor in base_header.tensors} if base_header else {}
        if base_header is None or name not in tensors or tensors[name].shape != saved.shape:
            return False
        pairs = zip(_values(file, header, saved), _values(base_file, base_header, tensors[name]), strict=True)
        return all(np.array_equal(ours, _rounded(bases, saved.dtype)) for ours, bases in pairs)


def _holding(base: Path, name: str) -> Path | None:
    """Return the base's file that holds a tensor; None if it is not under transformers' file names."""
    index, whole = base / _INDEX, base / "model.safetensors"
    if index.is_file():
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return base / str(files[name]) if name in files else None
    return whole if whole.is_file() else None


def _values(file: BufferedIOBase, header: Header, tensor: Tensor) -> Iterator[NDArray[np.float32]]:
    """Yield a tensor's values in chunks."""
    at, left = header.data_start + tensor.begin, tensor.elements
    while left:
        count = min(left, _CHUNK_VALUES)
        length = count * ITEM_BYTES[tensor.dtype]
        file.seek(at)
        raw = file.read(length)
        if len(raw) != length:
            raise EOFError("The file is shorter than its header says.")
        if tensor.dtype == "F32":
            yield np.frombuffer(raw, "<f4")
        elif tensor.dtype == "F16":
            yield np.frombuffer(raw, "<f2").astype(np.float32)
        else:
            yield (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        at, left = at + length, left - count


def _rounded(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """Round the values to a dtype, to nearest, ties to even."""
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    if dtype == "BF16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return values
