"""What a key may do less than its tenant, as plain frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Self

from app.domain.limits.limits import UNLIMITED, Limits


@dataclass(frozen=True, slots=True)
class Restrictions:
    """None: no restriction of that kind.

    Attributes:
        limits: beside those of the tenant.
        adapters: names of what it may infer with, as callers write them without alias and number: ``prices``,
            ``retail/prices``, the base model's own name.
        addresses: networks that its calls come from, as ``10.0.0.0/8``.
    """

    limits: Limits = UNLIMITED
    adapters: tuple[str, ...] | None = None
    addresses: tuple[str, ...] | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """What :attr:`stored` gave."""
        adapters, addresses = stored.get("adapters"), stored.get("addresses")
        return cls(
            Limits.of(stored.get("limits", {})),
            None if adapters is None else tuple(adapters),
            None if addresses is None else tuple(addresses),
        )

    @property
    def stored(self) -> dict[str, Any]:
        """As JSON, without what is not restricted."""
        found: dict[str, Any] = {"limits": self.limits.given} if self.limits.given else {}
        found |= {} if self.adapters is None else {"adapters": list(self.adapters)}
        return found | ({} if self.addresses is None else {"addresses": list(self.addresses)})

    def allows_model(self, name: str) -> bool:
        """Whether the key may infer with what has this name."""
        return self.adapters is None or name in self.adapters

    def allows_address(self, host: str | None) -> bool:
        """Whether a call may come from this address; from an unknown one only if all may."""
        if self.addresses is None:
            return True
        try:
            address = ip_address(host or "")
        except ValueError:
            return False
        # An IPv4 client of a socket that speaks both has an address like ::ffff:10.0.0.1.
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in _network(network) for network in self.addresses)


#: A key's until somebody sets others.
UNRESTRICTED = Restrictions()


@lru_cache(maxsize=10_000)
def _network(text: str) -> IPv4Network | IPv6Network:
    return ip_network(text)
