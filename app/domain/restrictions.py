"""Restrictions of a key within its tenant's rights, as frozen data."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Self

from app.domain.limits.limits import UNLIMITED, Limits


@dataclass(frozen=True, slots=True)
class Restrictions:
    """Restrictions of one key; None means no restriction of that kind.

    Attributes:
        limits: limits of the key, in addition to those of the tenant.
        adapters: names that the key may use for inference, as callers write them, without alias and number. Examples:
            ``prices``, ``retail/prices``, the name of the base model.
        addresses: networks from which the key may be used, e.g. ``10.0.0.0/8``.
    """

    limits: Limits = UNLIMITED
    adapters: tuple[str, ...] | None = None
    addresses: tuple[str, ...] | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Parse the output of :attr:`stored`."""
        adapters, addresses = stored.get("adapters"), stored.get("addresses")
        return cls(
            Limits.of(stored.get("limits", {})),
            None if adapters is None else tuple(adapters),
            None if addresses is None else tuple(addresses),
        )

    @property
    def stored(self) -> dict[str, Any]:
        """JSON representation, without the restrictions that are not set."""
        restrictions: dict[str, Any] = {"limits": self.limits.as_json} if self.limits.as_json else {}
        restrictions |= {} if self.adapters is None else {"adapters": list(self.adapters)}
        return restrictions | ({} if self.addresses is None else {"addresses": list(self.addresses)})

    def wider_than(self, other: "Restrictions") -> str | None:
        """Return the name of a restriction that allows more than the other's; None if there is none."""
        if other.adapters is not None and (self.adapters is None or not set(self.adapters).issubset(other.adapters)):
            return "adapters"
        if other.addresses is not None and not _covers(other.addresses, self.addresses):
            return "addresses"
        for name in (field.name for field in fields(Limits)):
            most, limit = getattr(other.limits, name), getattr(self.limits, name)
            if most is not None and (limit is None or limit > most):
                return "limits"
        return None

    def allows_model(self, name: str) -> bool:
        """Return whether the key may use this model name for inference."""
        return self.adapters is None or name in self.adapters

    def allows_address(self, host: str | None) -> bool:
        """Return whether the key may be used from this address.

        An unknown address is allowed only if addresses are not restricted.
        """
        if self.addresses is None:
            return True
        try:
            address = ip_address(host or "")
        except ValueError:
            return False
        # A dual-stack socket shows an IPv4 client as an IPv4-mapped address, e.g. ::ffff:10.0.0.1.
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in _network(network) for network in self.addresses)


#: Default restrictions of a key.
UNRESTRICTED = Restrictions()


def _covers(outer: Collection[str], inner: Collection[str] | None) -> bool:
    """Return whether each inner network lies in an outer one; None is the network of all addresses."""
    if inner is None:
        return False
    return all(any(_is_within(_network(text), _network(place)) for place in outer) for text in inner)


def _is_within(inner: IPv4Network | IPv6Network, outer: IPv4Network | IPv6Network) -> bool:
    if isinstance(inner, IPv4Network):
        return isinstance(outer, IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, IPv6Network) and inner.subnet_of(outer)


@lru_cache(maxsize=10_000)
def _network(text: str) -> IPv4Network | IPv6Network:
    return ip_network(text)
