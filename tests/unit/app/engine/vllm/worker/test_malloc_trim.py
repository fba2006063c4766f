"""malloc_trim returns freed memory to the system, at a limited rate."""

import ctypes

import psutil

from app.engine.vllm.worker.malloc_trim import MallocTrim
from tests.support.registry import SettableClock

#: Small enough to come from an arena, large enough to leave whole pages.
CHUNK, CHUNKS = 16 * 1024, 8_000
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def scattered() -> list[int]:
    """Fragment the heap: free every other chunk and return the chunks still in use."""
    chunks = [libc.malloc(CHUNK) for _ in range(CHUNKS)]
    for chunk in chunks:
        ctypes.memset(chunk, 1, CHUNK)
    for chunk in chunks[::2]:
        libc.free(chunk)
    return chunks[1::2]


def test_scattered_memory_goes_back_to_the_system() -> None:
    clock = SettableClock()
    malloc_trim = MallocTrim(monotonic=clock.monotonic)
    used = scattered()
    try:
        before = resident()
        malloc_trim.trim()
        assert resident() > before - CHUNK * CHUNKS // 8, "too early"
        clock.advance(60)
        malloc_trim.trim()
        assert resident() < before - CHUNK * CHUNKS // 4
    finally:
        for chunk in used:
            libc.free(chunk)


def test_it_is_given_back_once_a_minute() -> None:
    clock, given_back = SettableClock(), list[float]()
    malloc_trim = MallocTrim(lambda: given_back.append(clock.elapsed_s), monotonic=clock.monotonic)
    for seconds in (1, 58.5, 0.5, 1, 58, 181, 1):
        clock.advance(seconds)
        malloc_trim.trim()
    assert given_back == [60, 300]
