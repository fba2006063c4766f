"""Wake-ups that nobody waits for do not stay in memory."""

import ctypes
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

from app.engine.wakeups import take_wakeups

#: A command of ZeroMQ takes 40 bytes, and not each wake-up brings one: the writer's socket drops those that hurry.
KEPT, MANY = 50_000, 500_000


class _Used(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefg"] + [
        ("used", ctypes.c_size_t),
        *[("_", ctypes.c_size_t)] * 2,
    ]


mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = _Used


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[SpinCondition, SpinCondition]]:
    """Who writes and who reads; the reader has been woken once."""
    with zmq.Context() as context:
        writer, reader = (SpinCondition(reads, context, f"ipc://{tmp_path}/w") for reads in (False, True))
        reader.busy_loop_s = 0
        while not reader.local_notify_socket.poll(10):
            writer.notify()
        reader.wait(timeout_ms=1000)
        reader.busy_loop_s = 1
        yield writer, reader
        context.destroy()


def wake_up_the_awake(writer: SpinCondition, reader: SpinCondition, count: int) -> int:
    """How often until memory has grown: at most this number of times."""
    before = mallinfo().used
    for number in range(count):
        writer.notify()
        reader.record_read()
        time.sleep(1e-5)
        if mallinfo().used - before > KEPT:
            return number
    return count


def test_who_is_awake_takes_its_wake_ups(
    pair: tuple[SpinCondition, SpinCondition], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = wake_up_the_awake(*pair, MANY)
    assert times < MANY, "vLLM takes them by now: app/engine/wakeups.py is not needed any more"
    monkeypatch.setattr(SpinCondition, "record_read", SpinCondition.record_read)  # given back at the end
    take_wakeups()
    seconds = itertools.count()
    monkeypatch.setattr("app.engine.wakeups.monotonic", lambda: next(seconds) / 100)
    assert wake_up_the_awake(*pair, 2 * times) == 2 * times


def test_who_sleeps_is_woken(pair: tuple[SpinCondition, SpinCondition], monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = pair
    monkeypatch.setattr(SpinCondition, "record_read", SpinCondition.record_read)
    take_wakeups()
    reader.record_read()
    reader.last_read -= 1
    writer.notify()
    time.sleep(0.1)
    reader.record_read()  # takes the command, not the message
    assert reader.poller.poll(10_000) == [(reader.local_notify_socket, zmq.POLLIN)]
