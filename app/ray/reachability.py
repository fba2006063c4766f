"""Quick check of a cluster's address, since Ray itself tries for minutes and then shows a traceback."""

import os
import socket
import ssl
from collections.abc import Mapping

from app.domain.errors import EngineUnavailable

_TIMEOUT_S = 5.0
#: Preface of HTTP/2 with an empty frame of settings, and the type of such a frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
_HEAD_BYTES, _SETTINGS = 9, 4


def check_reachable(address: str, environ: Mapping[str, str] = os.environ) -> None:
    """Check that the cluster at an address answers in HTTP/2, with TLS if RAY_USE_TLS is 1. Blocks.

    Raises:
        EngineUnavailable: it does not, or the certificates of the two sides do not fit.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    encrypted = environ.get("RAY_USE_TLS") == "1"
    try:
        with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
            if not encrypted:
                head = _greet(connection)
            else:
                with _context(environ).wrap_socket(connection, server_hostname=host) as secured:
                    head = _greet(secured)
    except ssl.SSLError as error:
        raise _untrusted(address, _reason(error)) from None
    except OSError as error:
        reason = error.strerror or "no answer in time"
        raise EngineUnavailable(
            f"The cluster at {address} does not answer: {reason}. Start it, or correct TENORA_RAY__ADDRESS."
        ) from None
    if len(head) == _HEAD_BYTES and head[3] == _SETTINGS:
        return
    if encrypted:
        # A server that refuses a certificate may end the connection after the handshake without an alert.
        raise _untrusted(address, "the cluster closed the connection")
    raise EngineUnavailable(
        f"The cluster at {address} does not answer to plain text. It may run with TLS: set RAY_USE_TLS and "
        "RAY_TLS_* here as for `ray start`, or correct TENORA_RAY__ADDRESS."
    )


def _untrusted(address: str, reason: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"No TLS connection to the cluster at {address}: {reason}. Check that both sides use TLS, with certificates of "
        "one authority that name their addresses: `tenora engines certificate` issues them."
    )


def _greet(connection: socket.socket) -> bytes:
    """Send the preface, and return the head of the first frame of the answer; fewer bytes if the other side ends."""
    connection.sendall(_PREFACE)
    head = b""
    while len(head) < _HEAD_BYTES:
        try:
            received = connection.recv(_HEAD_BYTES - len(head))
        except ConnectionResetError:
            break
        if not received:
            break
        head += received
    return head


def _context(environ: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=environ["RAY_TLS_CA_CERT"])
    context.load_cert_chain(environ["RAY_TLS_SERVER_CERT"], environ["RAY_TLS_SERVER_KEY"])
    context.set_alpn_protocols(["h2"])
    return context


def _reason(error: ssl.SSLError) -> str:
    text = getattr(error, "verify_message", None) or (error.reason or "unknown").replace("_", " ").lower()
    return str(text).rstrip(".")
