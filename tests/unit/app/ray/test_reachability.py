"""Quick check of a cluster's address."""

import socket
import threading

import pytest

from app.domain.errors import EngineUnavailable
from app.ray.reachability import check_reachable


def test_a_port_without_a_listener_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(EngineUnavailable, match=f"The cluster at {address} does not answer: Connection refused"):
        check_reachable(address, {})


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x46"])
def test_what_is_no_cluster_is_refused(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(EngineUnavailable, match="does not answer to plain text"):
            check_reachable(f"127.0.0.1:{server.getsockname()[1]}", {})
        thread.join()
