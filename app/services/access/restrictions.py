"""Key restrictions: validate JSON merge patches of them."""

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_network

from adapters.errors import InvalidName
from adapters.identity import DEFAULT_ALIAS, parse_model_name
from app.domain.errors import InvalidRequest
from app.domain.restrictions import Restrictions
from app.services.common.validation import patched_limits

#: Maximum number of adapter names, and of networks, for one key.
MOST = 100


def changed(old: Restrictions, raw: Mapping[str, object], *, base_name: str) -> Restrictions:
    """Apply a JSON merge patch to restrictions: null lifts one, a missing field stays, a list replaces the old list.

    Args:
        raw: patch with ``limits`` (see :func:`app.services.common.validation.patched_limits`), ``adapters`` and
            ``addresses``.
        base_name: name by which callers select the base model.

    Raises:
        InvalidRequest
    """
    new = old
    if "limits" in raw:
        new = replace(new, limits=patched_limits(old.limits, raw["limits"]))
    if "adapters" in raw:
        new = replace(new, adapters=_adapters(raw["adapters"], base_name))
    if "addresses" in raw:
        new = replace(new, addresses=_addresses(raw["addresses"]))
    return new


def _adapters(raw: object, base_name: str) -> tuple[str, ...] | None:
    """Check adapter names. The adapters need not exist: a key may be created first."""
    names = _texts("adapters", raw)
    for name in names or ():
        if name != base_name and not _is_adapters(name):
            raise InvalidRequest(
                f"adapters contains {name[:80]!r}. Each item must be an adapter's name without alias or number "
                f"(prices, retail/prices), or {base_name} for the base model.",
                param="adapters",
            )
    return names


def _is_adapters(name: str) -> bool:
    try:
        parsed = parse_model_name(name)
    except InvalidName:
        return False
    return parsed.alias == DEFAULT_ALIAS and ":" not in name


def _addresses(raw: object) -> tuple[str, ...] | None:
    texts = _texts("addresses", raw)
    return None if texts is None else tuple(_network(text) for text in texts)


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        raise InvalidRequest(
            f"addresses contains {text[:80]!r}. Each item must be an address (192.0.2.7), or a network without bits "
            "after its prefix (10.0.0.0/8, 2001:db8::/32).",
            param="addresses",
        ) from None


def _texts(field: str, raw: object) -> tuple[str, ...] | None:
    if raw is None:
        return None
    if not isinstance(raw, list) or not all(isinstance(text, str) for text in raw):
        raise InvalidRequest(f"{field} is {raw!r:.80}; it must be a list of strings, or null.", param=field)
    if len(raw) > MOST:
        raise InvalidRequest(f"{field} has {len(raw)} items; the limit is {MOST}.", param=field)
    return tuple(dict.fromkeys(raw))
