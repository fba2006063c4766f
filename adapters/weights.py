"""Safetensors file of an adapter: parse the header within bounds, and check that all values are finite.

The format (https://huggingface.co/docs/safetensors) has three parts:

1. The header's length: 8 bytes, little-endian.
2. The header: a JSON object from tensor names to ``{"dtype", "shape", "data_offsets": [begin, end]}``. An optional
   ``__metadata__`` maps strings to strings.
3. The tensors' bytes, little-endian, without holes.

The safetensors library accepts every file that is accepted here. It also accepts more, such as one million empty
tensors, or duplicate names. Pickle formats (``.bin``, ``.pt``) run code when read and are never opened. Only the float
dtypes of LoRA adapters are allowed, because vLLM would also cast integers, F64 and F8.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedIOBase
from math import prod
from typing import Any

import numpy as np

from adapters.errors import Reason
from adapters.foreign import empty_tensor, known_beginning
from adapters.strict_json import parse_object, show

WEIGHTS_FILE = "adapter_model.safetensors"
MAX_HEADER_BYTES = 2**20
MAX_TENSORS = 20_000
MAX_NAME = 200

#: Bytes per element, by allowed dtype.
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}

#: Bytes in front of the header, which hold its length.
LENGTH_BYTES = 8
#: The safetensors library pads its header so that tensors begin at a multiple of this many bytes.
_ALIGNMENT = 8
_MAX_DIMENSIONS = 8
_MAX_DIMENSION = 2**31 - 1
_NAME = re.compile(rf"[A-Za-z0-9_.]{{1,{MAX_NAME}}}", re.ASCII)
CHUNK_BYTES = 4 * 2**20

# Magic bytes of a zip archive (torch.save since 1.6), and protocols 0x80 0x02..0x05 of a bare pickle.
_ZIP = b"PK\x03\x04"
_PICKLE = re.compile(rb"\x80[\x02-\x05]")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor entry of the header.

    Attributes:
        begin, end: offsets of its bytes, relative to the end of the header.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """Header whose tensors cover the rest of the file exactly.

    Attributes:
        tensors: tensors in the order of their bytes.
        data_start: offset of the first tensor's bytes in the file.
    """

    tensors: tuple[Tensor, ...]
    data_start: int


def read_header(file: BufferedIOBase, *, whole_bytes: int | None = None) -> tuple[Header | None, list[Reason]]:
    """Parse and validate the header of a seekable file.

    Memory stays within some tens of MiB for any input.

    Args:
        whole_bytes: size of the whole file, if ``file`` holds only its beginning.

    Returns:
        The header, or None and at least one reason.
    """
    size = file.seek(0, os.SEEK_END) if whole_bytes is None else whole_bytes
    file.seek(0)
    prefix = file.read(LENGTH_BYTES)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < LENGTH_BYTES or length > MAX_HEADER_BYTES or LENGTH_BYTES + length > size:
        return None, [_bad_length(prefix, length, size)]
    try:
        entries = _parse(file.read(length))
    except ValueError as error:
        return None, [Reason("header_not_json", WEIGHTS_FILE, str(error)[:120], "one JSON object in UTF-8")]
    reasons = _check_metadata(entries.pop("__metadata__", {}))
    if len(entries) > MAX_TENSORS:
        return None, [*reasons, Reason("too_many_tensors", WEIGHTS_FILE, f"{len(entries)}", f"{MAX_TENSORS} tensors")]
    tensors = [tensor for name, entry in entries.items() if (tensor := _read_entry(name, entry, reasons))]
    if reasons:
        return None, reasons
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    data_start = LENGTH_BYTES + length
    reasons = _check_layout(tensors, size - data_start)
    return (None if reasons else Header(tuple(tensors), data_start)), reasons


def _bad_length(prefix: bytes, length: int, size: int) -> Reason:
    if prefix.startswith(_ZIP) or _PICKLE.match(prefix):
        return Reason("pickle_format", WEIGHTS_FILE, "a pickle, which runs code when read", "the safetensors format")
    if reason := known_beginning(prefix):
        return reason
    if len(prefix) == LENGTH_BYTES and length > MAX_HEADER_BYTES:
        return Reason("header_too_long", WEIGHTS_FILE, f"a header of {length} bytes", f"{MAX_HEADER_BYTES} bytes")
    return Reason("truncated", WEIGHTS_FILE, f"{size} bytes", "a whole safetensors file")


def _parse(raw: bytes) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        raise ValueError("does not start with {")
    return parse_object(raw)


def _check_metadata(metadata: object) -> list[Reason]:
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        return []
    return [Reason("invalid_header", "__metadata__", show(metadata), "an object from strings to strings")]


def _read_entry(name: str, entry: object, reasons: list[Reason]) -> Tensor | None:
    """Parse one entry into a Tensor. On failure, append a reason and return None."""
    if not _NAME.fullmatch(name):
        reasons.append(Reason("tensor_name", show(name), show(name), f"1 to {MAX_NAME} letters, digits, _ and ."))
        return None
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        reasons.append(Reason("invalid_header", name, show(entry), "an object of dtype, shape and data_offsets"))
        return None
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        reasons.append(Reason("unsupported_dtype", name, show(dtype), ", ".join(ITEM_BYTES)))
    elif _is_integers(shape, 0, _MAX_DIMENSION) and 0 in shape:
        reasons.append(empty_tensor(name, shape))
    elif not _is_integers(shape, 1, _MAX_DIMENSION) or len(shape) > _MAX_DIMENSIONS:
        reasons.append(Reason("invalid_header", name, f"shape {show(shape)}", "a list of positive integers"))
    elif not _is_integers(offsets, 0, 2**63) or len(offsets) != 2:
        reasons.append(Reason("invalid_header", name, f"data_offsets {show(offsets)}", "[begin, end]"))
    elif (expected := prod(shape) * ITEM_BYTES[dtype]) != offsets[1] - offsets[0]:
        found = f"{offsets[1] - offsets[0]} bytes"
        reasons.append(Reason("data_layout", name, found, f"{expected} bytes for {dtype} {show(shape)}"))
    else:
        return Tensor(name, dtype, tuple(shape), offsets[0], offsets[1])
    return None


def _is_integers(value: object, low: int, high: int) -> bool:
    return isinstance(value, list) and all(type(item) is int and low <= item <= high for item in value)


def _check_layout(tensors: list[Tensor], data_bytes: int) -> list[Reason]:
    """Check that the tensors are contiguous and end with the file."""
    reasons = []
    end = 0
    for tensor in tensors:
        if tensor.begin != end:
            word = "a hole" if tensor.begin > end else "an overlap"
            reasons.append(Reason("data_layout", tensor.name, f"{word} before byte {tensor.begin}", f"begin at {end}"))
        end = tensor.end
    if end != data_bytes:
        found = f"{data_bytes} bytes of tensors"
        reasons.append(Reason("data_layout", WEIGHTS_FILE, found, f"{end} bytes, as the header says"))
    return reasons


def write_renamed(file: BufferedIOBase, header: Header, names: Mapping[str, str], target: BufferedIOBase) -> None:
    """Write tensors under other names. Deterministic: the same header gives the same bytes.

    Args:
        names: new name by old name; a tensor without one is dropped.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    kept, begin = [tensor for tensor in header.tensors if tensor.name in names], 0
    for tensor in kept:
        end = begin + tensor.end - tensor.begin
        entries[names[tensor.name]] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    target.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    for tensor in kept:
        file.seek(header.data_start + tensor.begin)
        left = tensor.end - tensor.begin
        while left:
            chunk = file.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise EOFError("The weights file is shorter than its header says.")
            target.write(chunk)
            left -= len(chunk)


def find_nonfinite(
    file: BufferedIOBase, header: Header, serving_dtype: str, scalings: Mapping[str, float]
) -> list[Reason]:
    """Find tensors with a value that is not finite, or that overflows when the engine loads it.

    The engine casts every tensor to ``serving_dtype``. It then multiplies lora_B by the adapter's scaling in that
    dtype. The file is read once, in chunks of :data:`CHUNK_BYTES`.

    Args:
        serving_dtype: dtype of the engine: ``float16``, ``bfloat16`` or ``float32``.
        scalings: scaling factor by tensor name; 1 if absent.

    Raises:
        EOFError: the file is shorter than its header says.
    """
    reasons = []
    # Size of a chunk, or of the largest tensor: for a small adapter, two full buffers cost more than reading it.
    room = min(CHUNK_BYTES, max((tensor.end - tensor.begin for tensor in header.tensors), default=0))
    buffer, scratch = bytearray(room), bytearray(room)
    file.seek(header.data_start)
    for tensor in header.tensors:
        magnitude = _largest_magnitude(file, tensor, buffer, scratch)
        if not np.isfinite(magnitude):
            reasons.append(Reason("non_finite", tensor.name, "NaN or infinity", "finite values"))
        elif not _fits(magnitude, serving_dtype, scalings.get(tensor.name, 1.0)):
            found = f"{magnitude:.6g}, which scaling and {serving_dtype} turn into infinity"
            reasons.append(Reason("non_finite", tensor.name, found, "values that stay finite when loaded"))
    return reasons


def _largest_magnitude(file: BufferedIOBase, tensor: Tensor, buffer: bytearray, scratch: bytearray) -> np.float32:
    """Return the largest absolute value of the tensor; NaN or infinity if it holds one.

    Without its sign bit, an IEEE float orders like the integer of the same bits. Infinity is above the finite values,
    and NaN is above infinity. So the search is an integer maximum, which also works for bfloat16, a dtype that numpy
    lacks.
    """
    bits = np.dtype("<u4" if tensor.dtype == "F32" else "<u2")
    without_sign = bits.type(np.iinfo(bits).max >> 1)
    largest = 0
    left = tensor.end - tensor.begin
    while left:
        count = min(left, len(buffer))
        if file.readinto(memoryview(buffer)[:count]) != count:
            raise EOFError("The weights file is shorter than its header says.")
        items = count // bits.itemsize
        values, magnitudes = np.frombuffer(buffer, bits, items), np.frombuffer(scratch, bits, items)
        np.bitwise_and(values, without_sign, out=magnitudes)
        largest = max(largest, int(magnitudes.max()))
        left -= count
    if tensor.dtype == "F16":
        return np.float32(np.uint16(largest).view(np.float16))
    return np.uint32(largest << 16 if tensor.dtype == "BF16" else largest).view(np.float32)


def _fits(magnitude: np.float32, serving_dtype: str, scaling: float) -> bool:
    """Return whether the value stays finite after the cast and after the multiplication in the same dtype."""
    with np.errstate(over="ignore"):
        cast = _round(magnitude, serving_dtype)
        scaled = _round(cast * np.float32(scaling), serving_dtype)
    return bool(np.isfinite(cast) and np.isfinite(scaled))


def _round(value: np.float32, dtype: str) -> np.float32:
    """Round to the nearest value of the dtype, ties to even, as torch casts."""
    if dtype == "float16":
        return np.float32(np.float16(value))
    if dtype == "bfloat16" and np.isfinite(value):
        bits = int(value.view(np.uint32))
        bits += 0x7FFF + (bits >> 16 & 1)
        return np.uint32(bits & 0xFFFF0000).view(np.float32)
    return value
