"""Wake-ups of vLLM's processes that nobody waited for, taken before they fill the memory."""

from time import monotonic

import zmq
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition


def take_wakeups() -> None:
    """Let this process take what it is woken with once a second, also while it never sleeps.

    Core and worker write to memory that they share and wake each other through a socket. Whoever read less than a
    second ago looks at the memory instead, and at the socket not at all; ZeroMQ keeps only the last message of it
    (``ZMQ_CONFLATE``), but for each one a command to read it, until somebody asks (libzmq, issue 3171). An engine that
    was busy for an hour without a second's pause had 18 MiB of these.
    """
    SpinCondition.record_read = _record_read


def _record_read(self: SpinCondition) -> None:
    now = monotonic()
    if int(now) != int(self.last_read):
        self.local_notify_socket.get(zmq.EVENTS)
    self.last_read = now
