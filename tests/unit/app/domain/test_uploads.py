"""Partition of files into upload parts."""

from hypothesis import given
from hypothesis import strategies as st

from adapters.stores.staging import MAX_PARTS
from app.domain.uploads import MAX_PART_BYTES, UploadFile, UploadState, chosen_part_bytes

SIZES = st.integers(1, 2**42)
LEAST = st.sampled_from([2**18, 5 * 2**20])


@given(SIZES, LEAST)
def test_chosen_parts_cover_the_file_within_the_stores_bounds(size: int, least: int) -> None:
    file = UploadFile(size, "a" * 64, chosen_part_bytes(size, least))
    assert file.part_bytes >= least
    assert 1 <= file.parts <= MAX_PARTS
    assert size > 2**36 or file.part_bytes <= MAX_PART_BYTES
    assert sum(file.part_sizes) == size
    assert len(file.part_sizes) == file.parts
    assert all(part == file.part_bytes for part in file.part_sizes[:-1])
    assert 0 < file.part_sizes[-1] <= file.part_bytes


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_any_size_of_parts_covers_the_file(size: int, part_bytes: int) -> None:
    file = UploadFile(size, "a" * 64, max(part_bytes, size // 1000 + 1))
    assert sum(file.part_sizes) == size
    assert len(file.part_sizes) == file.parts


@given(st.integers(250_000_000, 4 * 2**30))
def test_ten_kills_of_four_parts_cost_no_more_than_a_twentieth(size: int) -> None:
    assert 10 * 4 * chosen_part_bytes(size, 2**18) <= 0.0501 * size


def test_only_open_and_finishing_are_under_way() -> None:
    assert [state for state in UploadState if state.live] == [UploadState.OPEN, UploadState.FINISHING]
