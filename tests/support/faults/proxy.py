"""TCP proxy with faults: slow, refusing, cutting, or answering by itself, like a bad network or peer."""

import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

#: SO_LINGER value that makes a closing socket send RST instead of FIN.
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Forward bytes between clients and a server.

    Args:
        target: the server's host and port, or the path of its socket.

    Attributes:
        port: listening port, on 127.0.0.1.
        delay_s: delay of every piece of data, in each direction.
        silent: forward nothing more, without an error.
        refuses: new connections are reset.
        answer: reply to any client data instead of the server's.
    """

    def __init__(self, target: tuple[str, int] | Path) -> None:
        self._target = target
        self.delay_s, self.silent, self.refuses = 0.0, False, False
        self.answer: bytes | None = None
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # close() alone does not wake a thread that is in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Reset every connection."""
        for end in tuple(self._open):
            _reset(end)

    def heal(self) -> None:
        """Forward everything without delay again."""
        self.delay_s, self.silent, self.refuses, self.answer = 0.0, False, False, None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = None if self.refuses else self._connect()
            except OSError:
                server = None
            if server is None:
                _reset(client)
                client.close()
                continue
            self._open |= {client, server}
            for source, sink, up in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._carry, args=(source, sink, up), daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self._target, tuple):
            return socket.create_connection(self._target)
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(str(self._target))
        except OSError:
            server.close()
            raise
        return server

    def _carry(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.delay_s)
                while self.silent:
                    time.sleep(0.05)
                if up and self.answer is not None:
                    source.sendall(self.answer)
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        # Only this thread's own end: the other thread may still be reading, and the descriptor could be reused.
        self._open.discard(source)
        source.close()


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        if end.family != socket.AF_UNIX:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.shutdown(socket.SHUT_RDWR)
