import gc
import io
import itertools
import json
import string
import struct
import time
import tracemalloc
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.weights import CHUNK_BYTES, MAX_HEADER_BYTES, Header, find_nonfinite, read_header

ONE_SECOND = timedelta(seconds=1)
MEMORY_BYTES = 64 * 2**20

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "F64": 8, "U8": 1}


def file_of(header: str | bytes, data: bytes = b"") -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw)) + raw + data


def read(raw: bytes) -> Header | None:
    """Read a header, and check that the result is a header or at least one reason."""
    header, reasons = read_header(io.BytesIO(raw))
    assert (header is None) is bool(reasons)
    return header


def agrees_with_safetensors(raw: bytes) -> bool:
    """Return whether the bytes are accepted; if so, check that safetensors finds the same tensors."""
    header = read(raw)
    if header is None:
        return False
    theirs = dict(safetensors.deserialize(raw))
    ours = {tensor.name: tensor for tensor in header.tensors}
    assert theirs.keys() == ours.keys()
    for name, tensor in ours.items():
        assert (theirs[name]["dtype"], tuple(theirs[name]["shape"])) == (tensor.dtype, tensor.shape)
        begin = header.data_start + tensor.begin
        assert bytes(theirs[name]["data"]) == raw[begin : header.data_start + tensor.end]
    return True


@pytest.fixture(scope="module")
def good_bytes(good_adapter: Path) -> bytes:
    return (good_adapter / "adapter_model.safetensors").read_bytes()


def test_reads_what_safetensors_wrote(good_bytes: bytes) -> None:
    assert agrees_with_safetensors(good_bytes)


@given(st.binary(max_size=300))
@settings(deadline=ONE_SECOND)
def test_random_bytes(raw: bytes) -> None:
    assert not agrees_with_safetensors(raw)


@given(st.binary(max_size=300).map(lambda raw: b"{" + raw) | st.text(max_size=300).map(lambda text: "{" + text))
@settings(deadline=ONE_SECOND)
def test_random_headers(header: str | bytes) -> None:
    agrees_with_safetensors(file_of(header))


@given(st.data())
@settings(deadline=ONE_SECOND)
def test_mutated_bytes(good_bytes: bytes, data: st.DataObject) -> None:
    raw = bytearray(good_bytes)
    header_end = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, header_end - 1))
        raw[position] = data.draw(st.integers(0, 255) | st.sampled_from(b'"{}[],:0123456789\\-.eE '))
    agrees_with_safetensors(bytes(raw))


NUMBERS = st.integers(-2, 12) | st.sampled_from(["-0", "1e0", "1.0", str(2**31), str(2**63), str(2**64), "true"])


@st.composite
def entries(draw: st.DrawFn) -> str:
    """Draw a header that is mostly valid, with some errors."""
    texts, position = [], 0
    for name in draw(st.lists(st.text("ab._/", min_size=1, max_size=3), max_size=4)):
        dtype = draw(st.sampled_from(list(SIZES)))
        shape: list[Any] = draw(st.lists(st.integers(1, 3), max_size=3))
        size = SIZES[dtype]
        for dimension in shape:
            size *= dimension
        begin = position if draw(st.integers(0, 9)) else draw(NUMBERS)
        end = position + size if draw(st.integers(0, 9)) else draw(NUMBERS)
        if not draw(st.integers(0, 9)):
            shape = [*shape, draw(NUMBERS)]
        dimensions = ",".join(str(dimension) for dimension in shape)
        texts.append(f'"{name}":{{"dtype":"{dtype}","shape":[{dimensions}],"data_offsets":[{begin},{end}]}}')
        position += size
    return "{" + ",".join(draw(st.permutations(texts))) + "}" + draw(st.sampled_from(["", " ", "\n", "x"]))


@given(entries(), st.integers(0, 40))
@settings(deadline=ONE_SECOND, max_examples=300)
def test_headers_that_are_nearly_right(header: str, size: int) -> None:
    agrees_with_safetensors(file_of(header, bytes(size)))


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(1, 5), max_size=4)), max_size=6))
@settings(deadline=ONE_SECOND)
def test_headers_that_are_right(tensors: list[tuple[torch.dtype, list[int]]]) -> None:
    values = {f"t{index}": torch.randn(shape).to(dtype) for index, (dtype, shape) in enumerate(tensors)}
    assert agrees_with_safetensors(safetensors.torch.save(values, metadata={"format": "pt"}))


def _names(count: int) -> list[str]:
    alphabet = string.ascii_letters + string.digits + "_."
    return ["".join(letters) for letters in itertools.islice(itertools.product(alphabet, repeat=3), count)]


def _full(item: str) -> str:
    """Build a header of just under 1 MiB that consists of one array."""
    return '{"a":[' + ",".join([item] * ((MAX_HEADER_BYTES - 10) // (len(item) + 1))) + "]}"


def _objects(entry: str, count: int) -> str:
    return "{" + ",".join(f'"{name}":{entry}' for name in _names(count)) + "}"


EXPENSIVE = {
    "too many objects": _objects("{}", 100_000),
    "many objects": _objects("{}", 60_000),
    "too many arrays": _full("[]"),
    "integers": _full("1"),
    "floats": _full("1.5"),
    "strings": _full('"aa"'),
    "escapes": _full('"\\u00e9\\u00e9"'),
    "escaped quotes": '{"' + '\\"' * (MAX_HEADER_BYTES // 2 - 5),
    "quotes": "{" + '"' * (MAX_HEADER_BYTES - 5),
    "brackets": '{"a":' + "[]" * (MAX_HEADER_BYTES // 2 - 5) + "}",
    "depth": '{"a":' + "[" * (MAX_HEADER_BYTES - 6),
    "digits": '{"a":' + "9" * (MAX_HEADER_BYTES - 6) + "}",
    "wrong tensors": _objects('{"dtype":"F3","shape":[1],"data_offsets":[0,4]}', 17_000),
    "overlapping tensors": _objects('{"dtype":"F32","shape":[1],"data_offsets":[0,4]}', 17_000),
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_the_most_expensive_headers_take_less_than_a_second(name: str) -> None:
    raw = file_of(EXPENSIVE[name])
    gc.collect()
    gc.freeze()  # Excludes objects of other tests from the measured cost.
    try:
        before = time.thread_time()
        assert read(raw) is None
        assert time.thread_time() - before < 1
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("name", ["many objects", "strings", "overlapping tensors"])
def test_the_largest_headers_stay_within_64_mib(name: str) -> None:
    raw = file_of(EXPENSIVE[name])
    tracemalloc.start()
    try:
        assert read(raw) is None
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()


def _nonfinite(values: list[tuple[str, bytes]], dtype: str = "float32", scaling: float = 1.0) -> list[str]:
    """Return the names of the tensors reported as non-finite; each is given by dtype and bytes."""
    entries, position = {}, 0
    for index, (name, raw) in enumerate(values):
        shape = [len(raw) // SIZES[name]]
        entries[f"t{index}"] = {"dtype": name, "shape": shape, "data_offsets": [position, position + len(raw)]}
        position += len(raw)
    file = io.BytesIO(file_of(json.dumps(entries), b"".join(raw for _, raw in values)))
    header, reasons = read_header(file)
    assert header is not None, reasons
    return [reason.field for reason in find_nonfinite(file, header, dtype, dict.fromkeys(entries, scaling))]


@pytest.mark.parametrize(
    ("dtype", "bits", "finite"),
    [
        ("F32", 0x7F7FFFFF, True),
        ("F32", 0x7F800000, False),
        ("F32", 0xFF800000, False),
        ("F32", 0x7FC00000, False),
        ("F32", 0xFFFFFFFF, False),
        ("F32", 0x7F800001, False),
        ("F32", 0x00000001, True),
        ("F32", 0x80000000, True),
        ("F16", 0x7BFF, True),
        ("F16", 0x7C00, False),
        ("F16", 0xFC01, False),
        ("BF16", 0xFF7F, True),
        ("BF16", 0x7F80, False),
        ("BF16", 0xFF80, False),
        ("BF16", 0xFFC0, False),
        ("BF16", 0x7F81, False),
    ],
)
def test_tells_finite_values_from_others(dtype: str, bits: int, finite: bool) -> None:
    raw = bytes(12) + bits.to_bytes(SIZES[dtype], "little") + bytes(4)
    assert _nonfinite([("F32", bytes(4)), (dtype, raw), ("F16", bytes(6))]) == ([] if finite else ["t1"])


@pytest.mark.parametrize(("dtype", "bits"), [("F32", 0xFF800000), ("BF16", 0x7FC0)])
@pytest.mark.parametrize("position", [0, CHUNK_BYTES - 4, CHUNK_BYTES, 2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 4])
def test_finds_one_value_wherever_it_is(dtype: str, bits: int, position: int) -> None:
    raw = bytearray(2 * CHUNK_BYTES + 8)
    raw[position : position + SIZES[dtype]] = bits.to_bytes(SIZES[dtype], "little")
    assert _nonfinite([("F16", bytes(6)), (dtype, bytes(raw)), ("F16", bytes(6))]) == ["t1"]


@pytest.mark.parametrize(
    ("serving", "value", "scaling", "finite"),
    [
        ("float16", 32_752.0, 2.0, True),
        ("float16", 32_768.0, 2.0, False),
        ("float16", 70_000.0, 0.25, False),
        ("bfloat16", 3e38, 1.125, True),
        ("bfloat16", 3e38, 1.25, False),
        ("float32", 3e38, 1.125, True),
        ("float32", 3e38, 2.0, False),
        ("float32", 0.0, 1e39, False),
    ],
)
def test_scaling_counts_in_the_serving_dtype(serving: str, value: float, scaling: float, finite: bool) -> None:
    found = _nonfinite([("F32", struct.pack("<2f", 1.0, value))], serving, scaling)
    assert found == ([] if finite else ["t0"])


def test_the_finite_check_holds_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "large"
    header = {"a": {"dtype": "BF16", "shape": [2**26], "data_offsets": [0, 2**27]}}
    with path.open("wb") as file:
        file.write(file_of(json.dumps(header)))
        file.truncate(file.tell() + 2**27)
    tracemalloc.start()
    try:
        with path.open("rb") as file:
            found, reasons = read_header(file)
            assert found is not None, reasons
            assert find_nonfinite(file, found, "bfloat16", {}) == []
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


def test_a_file_that_shrinks_while_it_is_read_is_an_error() -> None:
    whole = file_of('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8))
    header = read(whole)
    assert header is not None
    with pytest.raises(EOFError):
        find_nonfinite(io.BytesIO(whole[:-1]), header, "float32", {})
