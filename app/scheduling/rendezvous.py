"""Weighted rendezvous hashing: a stable order of replicas for each version (Thaler and Ravishankar 1998)."""

from functools import lru_cache
from hashlib import blake2b
from math import log

#: Replicas with their weights, sorted by node id.
Fleet = tuple[tuple[str, int], ...]


@lru_cache(maxsize=16_384)
def ranking(version: str, fleet: Fleet) -> tuple[str, ...]:
    """Rank the replicas for a version, the preferred one first.

    A replica is first for a share of versions that is proportional to its weight. A replica that joins or leaves does
    not change the order of the others: it moves the versions of which it is first, and no other.

    Args:
        version: content digest of the version.
        fleet: node ids and weights. Replicas without weight are left out.
    """
    prefix = blake2b(version.encode(), digest_size=8)
    races = []
    for node_id, weight in fleet:
        if weight > 0:
            digest = prefix.copy()
            digest.update(b"\0" + node_id.encode())
            # A number between 0 and 1, both excluded. Its logarithm over the weight is the time of an exponential race.
            uniform = ((int.from_bytes(digest.digest(), "big") >> 12) + 0.5) / 2**52
            races.append((-log(uniform) / weight, node_id))
    return tuple(node_id for _, node_id in sorted(races))
