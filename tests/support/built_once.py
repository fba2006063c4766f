"""Things that libraries build for each use, kept for the whole run: thousands of tests would wait for them."""

import copy
import functools
import os
import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import typer
from typer.main import get_command


@pytest.fixture(scope="session", autouse=True)
def built_once() -> Iterator[None]:
    """Read the machine's certificates once, not for each client, and build the CLI once, not for each command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", _context)
        patch.setattr("typer.testing._get_command", _command)
        yield


def _context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    named = trust_env and {"SSL_CERT_FILE", "SSL_CERT_DIR"} & os.environ.keys()
    if verify is True and cert is None and not named:
        return _default_context()
    return httpx.create_ssl_context(verify, cert, trust_env)


def _command(app: typer.Typer) -> Any:
    """Return a copy, because a group remembers the commands of other packages that it has found."""
    command: Any = copy.copy(_built(app))
    if hasattr(command, "commands"):
        command.commands = dict(command.commands)
    return command


_built = functools.cache(get_command)
_default_context = functools.cache(httpx.create_ssl_context)
