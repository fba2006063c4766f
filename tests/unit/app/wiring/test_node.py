"""The node id is stored in HOME and never changes."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.wiring.node import InvalidNodeId, node_id, node_name


def test_the_id_is_made_once_and_kept(tmp_path: Path) -> None:
    first = node_id(tmp_path / "home")
    assert len(first) == 32
    assert node_id(tmp_path / "home") == first
    assert node_id(tmp_path / "other") != first
    assert stat.S_IMODE((tmp_path / "home" / "node").stat().st_mode) == 0o600


def test_two_starts_at_once_get_one_id(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        ids = set(threads.map(lambda _: node_id(tmp_path), range(32)))
    assert len(ids) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["node"]


@pytest.mark.parametrize("content", ["", "ABC", "0" * 31, "é" * 32])
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "node").write_text(content)
    with pytest.raises(InvalidNodeId, match=r"not 32 lower-case hex digits[.] Restore this node"):
        node_id(tmp_path)


def test_a_node_has_a_name() -> None:
    assert 1 <= len(node_name()) <= 100
