"""Address filter for redirects of an import: public internet addresses only, never this network's (SSRF)."""

import asyncio
import ipaddress
import socket

# NAT64 prefix, which reaches IPv4 addresses through a translator, private ones too (RFC 6052).
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


class NotPublic(Exception):
    """A host without an address, or with one that is not public."""


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the public internet."""
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour
        if inner is not None:
            return is_public(str(inner))
        if parsed in _TRANSLATED or parsed.teredo is not None or parsed.is_site_local:
            return False
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved


async def public_addresses(host: str, port: int) -> list[str]:
    """Resolve a host to its addresses, all of them public.

    Connect to one of these. A second look-up could return another address (DNS rebinding).

    Raises:
        NotPublic: the host has no address, or one that is not public.
    """
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise NotPublic("The host has no address.") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    # Link-local IPv6 addresses come with a scope, "%eth0".
    if not addresses or not all("%" not in address and is_public(address) for address in addresses):
        raise NotPublic("The address of the host is not public.")
    return addresses
