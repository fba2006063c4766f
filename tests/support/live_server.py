"""Live server for tests: uvicorn in a thread, on a free port of the loopback interface."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp


class _Server(uvicorn.Server):
    """Server that signals when it has started or failed to start."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.settled.set()

    def serve_in_thread(self, sock: socket.socket) -> None:
        try:
            # uvicorn raises SystemExit if the application did not start.
            with contextlib.suppress(SystemExit):
                self.run(sockets=[sock])
        finally:
            self.settled.set()


@contextmanager
def live_server(app: ASGIApp, **options: Any) -> Iterator[str]:
    """Run the application, lifespan included, while the block lasts; yield its URL.

    Args:
        options: options of uvicorn.

    Raises:
        RuntimeError: the application did not start.
    """
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        config = uvicorn.Config(
            app,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
            **options,
        )
        server = _Server(config)
        thread = threading.Thread(target=server.serve_in_thread, args=(sock,), name="live-server")
        thread.start()
        try:
            server.settled.wait()
            if not server.started:
                raise RuntimeError("the application did not start; its log says why")
            yield url
        finally:
            server.should_exit = True
            thread.join()
