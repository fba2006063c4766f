"""Chunks that a server holds: unexpected errors of a line are counted in the run of its chunk."""

from app.domain.batches import Chunk, ChunkState, LinePlace
from app.services.batches.chunk_runs import MOST_ATTEMPTS, ChunkRun


def chunk() -> Chunk:
    return Chunk("batch_1", 0, None, "demo", (LinePlace(1, 0, 1), LinePlace(2, 1, 1)), ChunkState.RUNNING)


def test_a_line_has_three_attempts():
    run = ChunkRun(chunk())
    assert [run.may_retry(1) for _ in range(MOST_ATTEMPTS)] == [True, True, False]
    assert run.may_retry(2)


def test_another_run_of_the_chunk_begins_again():
    first, second = ChunkRun(chunk()), ChunkRun(chunk())
    for _ in range(MOST_ATTEMPTS - 1):
        assert first.may_retry(1)
    assert second.may_retry(1)
