"""Unread ZeroMQ wake-ups do not accumulate in memory."""

import select
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

from app.engine.vllm.patches.zmq_wakeups import take_wakeups

NOW = 1000.0


def is_left(reader: SpinCondition, seconds: float = 0) -> bool:
    """Return whether ZeroMQ holds unprocessed commands for this socket (``ZMQ_FD``)."""
    return bool(select.select([reader.local_notify_socket.FD], [], [], seconds)[0])


def wake(writer: SpinCondition, reader: SpinCondition) -> None:
    """Notify until a wake-up arrives; the writer's socket may drop some."""
    for _ in range(30):
        writer.notify()
        if is_left(reader, 1):
            return
    raise AssertionError("no wake-up has arrived")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[SpinCondition, SpinCondition]]:
    """Writer and reader; the reader was woken once and has drained its wake-ups."""
    with zmq.Context() as context:
        writer, reader = (SpinCondition(reads, context, f"ipc://{tmp_path}/w") for reads in (False, True))
        wake(writer, reader)
        while reader.local_notify_socket.poll(100):
            reader.local_notify_socket.recv()
        yield writer, reader
        context.destroy()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply ``take_wakeups`` until the test ends."""
    monkeypatch.setattr(SpinCondition, "record_read", SpinCondition.record_read)
    take_wakeups()


def test_vllm_itself_leaves_them(pair: tuple[SpinCondition, SpinCondition]) -> None:
    writer, reader = pair
    wake(writer, reader)
    reader.last_read = 0
    reader.record_read()
    assert is_left(reader), "vLLM takes them by now: app/engine/vllm/patches/zmq_wakeups.py is not needed any more"


@pytest.mark.usefixtures("taken")
def test_who_is_awake_takes_its_wake_ups_once_a_second(
    pair: tuple[SpinCondition, SpinCondition], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = pair
    reader.last_read = NOW
    for second in range(3):
        wake(writer, reader)
        monkeypatch.setattr("app.engine.vllm.patches.zmq_wakeups.monotonic", lambda second=second: NOW + second + 0.9)
        reader.record_read()
        assert is_left(reader)
        monkeypatch.setattr("app.engine.vllm.patches.zmq_wakeups.monotonic", lambda second=second: NOW + second + 1)
        reader.record_read()
        assert not is_left(reader)


@pytest.mark.usefixtures("taken")
def test_who_sleeps_is_woken(pair: tuple[SpinCondition, SpinCondition]) -> None:
    writer, reader = pair
    wake(writer, reader)
    reader.last_read = 0
    reader.record_read()  # consumes the command, not the message
    assert not is_left(reader)
    assert reader.poller.poll(10_000) == [(reader.local_notify_socket, zmq.POLLIN)]
