"""Proxies of the environment. They are for other machines: requests to this machine take none."""

from __future__ import annotations

import ipaddress
from urllib.request import getproxies, proxy_bypass

import httpx


def is_local(url: str) -> bool:
    """Return whether the URL names this machine: ``localhost``, or an address of the loopback interface."""
    host = httpx.URL(url).host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def proxy_failure(url: str, error: httpx.TransportError) -> str | None:
    """Return the sentence for a connection that failed at a proxy or on the way to it, None for other failures.

    The proxy's address may hold a password, so the sentence names only the variable.
    """
    variable = _variable(url)
    if variable is None or not isinstance(error, (httpx.ProxyError, httpx.ConnectError, httpx.ConnectTimeout)):
        return None
    return (
        f"Cannot reach {url} through the proxy that {variable} names: {str(error) or type(error).__name__}. Check "
        f"{variable}, or name the server's host in NO_PROXY."
    )


def _variable(url: str) -> str | None:
    """Return the environment variable with the proxy for a URL, None if requests to it take none."""
    address = httpx.URL(url)
    if is_local(url) or proxy_bypass(address.host):
        return None
    proxies = getproxies()
    return next((f"{kind.upper()}_PROXY" for kind in (address.scheme, "all") if proxies.get(kind)), None)
