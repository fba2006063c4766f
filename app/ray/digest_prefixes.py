"""Sets of content digests, short enough to be sent every second."""

import heapq
from collections.abc import Iterable, Iterator, Set

#: Hex digits of a digest that are sent. Among a million versions, two have the same with a chance of 1 in 30 million.
PREFIX = 16
#: Digests of one set that are sent. Of more, those with the smallest values are: the same ones each time.
MAX_DIGESTS = 2_048


class DigestPrefixes(Set[str]):
    """Digests by their first hex digits. A full digest is in it if its prefix is.

    A wrong answer costs a load that could have been avoided, and nothing else.
    """

    __slots__ = ("_prefixes",)

    def __init__(self, digests: Iterable[str] = ()) -> None:
        self._prefixes = frozenset(digest[:PREFIX] for digest in digests)

    def __contains__(self, digest: object) -> bool:
        return isinstance(digest, str) and digest[:PREFIX] in self._prefixes

    def __iter__(self) -> Iterator[str]:
        return iter(self._prefixes)

    def __len__(self) -> int:
        return len(self._prefixes)

    def __hash__(self) -> int:
        return hash(self._prefixes)

    def __repr__(self) -> str:
        return f"DigestPrefixes({sorted(self._prefixes)})"


def encode_digests(digests: Iterable[str]) -> str:
    """Encode at most :data:`MAX_DIGESTS` of them as text."""
    return " ".join(heapq.nsmallest(MAX_DIGESTS, {digest[:PREFIX] for digest in digests if digest}))


def decode_digests(text: str) -> DigestPrefixes:
    return DigestPrefixes(text.split())
