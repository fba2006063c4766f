"""Compressed blobs: what goes in comes out, equal contents differ, damage is found."""

import gzip
import tracemalloc
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.errors import DigestMismatch
from app.services.files.compression import blocks, compress, decompress


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(parts=st.lists(st.binary(max_size=300)), repeats=st.integers(1, 9000))
def test_a_content_survives(tmp_path: Path, parts: list[bytes], repeats: int) -> None:
    content = b"".join(parts) * repeats
    for path in tmp_path.iterdir():
        path.unlink()
    compressed = compress(iter(parts * repeats), tmp_path / "blob", comment="file-1")
    assert (compressed.bytes, compressed.sha256) == (len(content), sha256(content).hexdigest())
    assert compressed.digest == sha256((tmp_path / "blob").read_bytes()).hexdigest()
    assert decompress(tmp_path / "blob", tmp_path / "copy", digest=compressed.digest) == len(content)
    assert (tmp_path / "copy").read_bytes() == content
    with gzip.open(tmp_path / "blob") as file:
        assert file.read() == content


def test_equal_contents_are_different_blobs(tmp_path: Path) -> None:
    first = compress([b"same"], tmp_path / "first", comment="file-1")
    second = compress([b"same"], tmp_path / "second", comment="file-2")
    assert first.sha256 == second.sha256
    assert first.digest != second.digest


@pytest.mark.parametrize("damage", ["flipped", "torn", "grown", "empty"])
def test_a_damaged_blob_yields_nothing(tmp_path: Path, damage: str) -> None:
    compressed = compress([b"some content" * 1000], tmp_path / "blob", comment="file-1")
    blob = bytearray((tmp_path / "blob").read_bytes())
    blob[len(blob) // 2] ^= damage == "flipped"
    kept = {"torn": blob[:-1], "grown": blob + b"x", "empty": bytearray()}.get(damage, blob)
    (tmp_path / "blob").write_bytes(kept)
    with pytest.raises(DigestMismatch):
        decompress(tmp_path / "blob", tmp_path / "copy", digest=compressed.digest)
    assert not (tmp_path / "copy").exists()


def test_memory_is_flat_for_content_that_shrinks_thousandfold(tmp_path: Path) -> None:
    compressed = compress((b"a" * 2**20 for _ in range(64)), tmp_path / "blob", comment="file-1")
    tracemalloc.start()
    assert decompress(tmp_path / "blob", tmp_path / "copy", digest=compressed.digest) == 64 * 2**20
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 * 2**20


def test_contents_are_appended(tmp_path: Path) -> None:
    digests = [
        compress([content], tmp_path / name, comment=name).digest for name, content in (("a", b"1"), ("b", b"2"))
    ]
    for name, digest in zip("ab", digests, strict=True):
        decompress(tmp_path / name, tmp_path / "whole", digest=digest)
    assert b"".join(blocks(tmp_path / "whole")) == b"12"
