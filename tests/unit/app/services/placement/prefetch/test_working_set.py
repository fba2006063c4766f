import json
import logging
import os
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.errors import StoreUnavailable
from adapters.identity import VersionKey
from app.services.placement.prefetch.working_set import MOST, Used, WorkingSet, WorkingSetFile


def key(version_id: int) -> VersionKey:
    digest = sha256(str(version_id).encode()).hexdigest()
    return VersionKey(version_id, digest, digest, 1, 1)


def used(*version_ids: int) -> tuple[Used, ...]:
    return tuple(Used(version_id, key(version_id).digest) for version_id in version_ids)


@pytest.fixture
def file(tmp_path: Path) -> WorkingSetFile:
    return WorkingSetFile(tmp_path / "working-set.json")


def test_the_last_used_comes_first_and_the_oldest_goes() -> None:
    working_set = WorkingSet(most=3)
    for version_id in (1, 2, 3, 1, 4):
        working_set.seen(key(version_id), "a")
    assert working_set.ids == (4, 1, 3)
    assert working_set.used == used(4, 1, 3)


def test_a_huge_tenant_does_not_evict_the_others() -> None:
    working_set = WorkingSet(most=100)
    for version_id in range(1, 41):
        working_set.seen(key(version_id), f"tenant-{version_id % 4}")
    for version_id in range(1000, 4000):
        working_set.seen(key(version_id), "hostile")
    assert set(working_set.ids) >= set(range(1, 41))
    assert len(working_set.ids) == 100
    # The other tenants can grow back to their full shares.
    for version_id in range(41, 81):
        working_set.seen(key(version_id), f"tenant-{version_id % 4}")
    assert set(working_set.ids) >= set(range(41, 81))


@given(st.lists(st.tuples(st.integers(1, 12), st.sampled_from("abcdef"), st.booleans()), max_size=80))
def test_any_course_of_requests_and_deletions(steps: list[tuple[int, str, bool]]) -> None:
    working_set, last, gone = WorkingSet(most=4), 0, set[int]()
    for version_id, tenant, delete in steps:
        before = working_set.ids
        if delete:
            assert working_set.forget([version_id, version_id + 100]) == (version_id in before)
            gone.add(version_id)
        else:
            working_set.seen(key(version_id), tenant)
            gone.discard(version_id)
            last = version_id
            assert working_set.ids[0] == last
        assert len(set(working_set.ids)) == len(working_set.ids) <= 4
        assert not gone & set(working_set.ids)


def test_what_is_written_is_read_back(file: WorkingSetFile, tmp_path: Path) -> None:
    assert file.read() == ()
    file.write(used(*range(1, MOST + 1)))
    assert file.read() == used(*range(1, MOST + 1))
    file.write(used(3, 1))
    assert file.read() == used(3, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["working-set.json"]
    assert stat.S_IMODE((tmp_path / "working-set.json").stat().st_mode) == 0o600
    file.remove()
    file.remove()
    assert file.read() == ()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _content(content: object) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


_GOOD = {"id": 1, "digest": "a" * 64}
HOSTILE = {
    "empty": _content(b""),
    "half": _content(b'{"versions": [{"id": 1, "dig'),
    "no UTF-8": _content(b"\xff\xfe{}"),
    "no object": _content([_GOOD]),
    "other keys": _content({"version": []}),
    "no list": _content({"versions": _GOOD}),
    "too many": _content({"versions": [_GOOD] * (MOST + 1)}),
    "too large": _content({"versions": [], "more": "x" * 2**20}),
    "too deep": _content(b'{"versions": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
    "a name for an id": _content({"versions": [_GOOD, {"id": "1", "digest": "a" * 64}]}),
    "a truth for an id": _content({"versions": [{"id": True, "digest": "a" * 64}]}),
    "no id of a row": _content({"versions": [{"id": 2**40, "digest": "a" * 64}]}),
    "id 0": _content({"versions": [{"id": 0, "digest": "a" * 64}]}),
    "a path for a digest": _content({"versions": [{"id": 1, "digest": "../" * 20}]}),
    "a directory": Path.mkdir,
    "a pipe": _fifo,
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_file_that_is_not_ours_is_ignored_with_a_warning(
    file: WorkingSetFile, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    HOSTILE[how](tmp_path / "working-set.json")
    with caplog.at_level(logging.WARNING):
        assert file.read() == ()
    assert "working set" in caplog.text


@given(content=st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_bytes_make_it_fail(tmp_path_factory: pytest.TempPathFactory, content: bytes | str) -> None:
    path = tmp_path_factory.mktemp("home") / "working-set.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
    assert WorkingSetFile(path).read() == ()


def test_a_write_that_fails_leaves_the_file_as_it_was(file: WorkingSetFile, tmp_path: Path) -> None:
    (tmp_path / "working-set.json").mkdir()
    with pytest.raises(StoreUnavailable) as caught:
        file.write(used(1))
    assert str(tmp_path) not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["working-set.json"]
