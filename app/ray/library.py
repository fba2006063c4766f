"""Ray as an optional library, and the environment that it reads before its import."""

import importlib
import importlib.util
import ipaddress
import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from app.domain.errors import EngineUnavailable
from app.ray.token import token_path

_MODE, _TOKEN, _TOKEN_PATH, _TLS = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_USE_TLS"
_TLS_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
#: Ray must neither report its use, nor start a page without a key, nor run replicas after all other programs: its
#: default is a niceness of 15.
_DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_DASHBOARD_LOG_INFO": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
_MISSING = (
    "Engine replicas need Ray, which is not installed. Run `make environment-ray`, or install the extra: "
    "pip install 'tenora[ray]'."
)


class RayMissing(EngineUnavailable):
    """The extra ``ray`` is not installed."""


class Unsafe(ValueError):
    """The cluster would accept calls without a token, or carry prompts unencrypted."""


def require_ray() -> None:
    """Check that Ray is installed.

    Raises:
        RayMissing
    """
    if importlib.util.find_spec("ray") is None:
        raise RayMissing(_MISSING)


def prepare(home: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that Ray reads at its import: token authentication, no reports, priority. Blocks.

    Raises:
        Unsafe: token authentication is switched off.
        OSError: HOME cannot be written.
    """
    check_mode(environ)
    before = dict(environ)
    environ[_MODE] = "token"
    if _TOKEN not in environ and _TOKEN_PATH not in environ:
        environ[_TOKEN_PATH] = str(token_path(home))
    for name, value in _DEFAULTS.items():
        environ.setdefault(name, value)
    if "ray" in sys.modules and before != environ:
        # Ray keeps the mode that it read at its import, and the token of the last cluster.
        library = importlib.import_module("ray._raylet")
        library.Config.initialize("")
        library.AuthenticationTokenLoader.instance().reset_cache()


def check_mode(environ: Mapping[str, str]) -> None:
    """Check that token authentication is not switched off.

    Raises:
        Unsafe
    """
    mode = environ.get(_MODE, "token")
    if mode.lower() != "token":
        raise Unsafe(
            f"{_MODE} is {mode[:20]!r}. Without a token, anyone who reaches a port of Ray can run code here. "
            f"Unset it, or set it to token."
        )


def check_network(host: str, environ: Mapping[str, str], *, plaintext: bool) -> None:
    """Check that traffic off this machine is encrypted, unless the operator allows plain text. Blocks.

    Raises:
        Unsafe: also if TLS is on and one of its files cannot be read.
    """
    if environ.get(_TLS) == "1":
        _check_tls_files(environ)
        return
    if is_loopback(host) or plaintext:
        return
    raise Unsafe(
        f"{host} is not a loopback address, and {_TLS} is not 1: prompts and answers would cross the network "
        "unencrypted. Run `tenora engines certificate`, which prints the variables of TLS, or set "
        "TENORA_RAY__PLAINTEXT=true."
    )


def tls_variables(authority: Path, folder: Path) -> dict[str, str]:
    """Return the variables that make Ray use the certificate in a folder, by that of its authority."""
    paths = folder / "tls.crt", folder / "tls.key", authority / "tls.crt"
    return {_TLS: "1"} | dict(zip(_TLS_FILES, map(str, paths), strict=True))


def _check_tls_files(environ: Mapping[str, str]) -> None:
    for name in _TLS_FILES:
        path = environ.get(name)
        if not path:
            raise Unsafe(f"{_TLS} is 1, but {name} is not set. Run `tenora engines certificate`, which prints it.")
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise Unsafe(f"{name} is {path[:200]}, which cannot be read: {error.strerror}. Check the path.") from None


def is_loopback(host: str) -> bool:
    """Return whether a host is an address of the loopback network."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
