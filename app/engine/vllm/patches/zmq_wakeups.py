"""Drain unread ZeroMQ wake-ups of vLLM's processes before they accumulate in memory."""

from time import monotonic

import zmq
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition


def take_wakeups() -> None:
    """Make this process read its wake-ups once a second, even while it never sleeps.

    Core and worker write to shared memory and wake each other through a socket. A reader that has read within the last
    second polls the memory instead, and never reads the socket. ZeroMQ keeps only the socket's last message
    (``ZMQ_CONFLATE``), but queues a command for each message until the socket is read (libzmq, issue 3171). These
    commands accumulate in a busy engine. See docs/decisions/0023-memory-of-long-running-engine-processes.md.
    """
    SpinCondition.record_read = _record_read


def _record_read(self: SpinCondition) -> None:
    now = monotonic()
    if int(now) != int(self.last_read):
        self.local_notify_socket.get(zmq.EVENTS)
    self.last_read = now
