"""Weighted traffic split of an alias, sticky by user. Pure functions.

Requests with the same ``user`` get the same version while the weights stay the same. The first 7 bytes of SHA-256 over
the alias and the user, as a fraction of 2**56, select a point on the line of weights. The newest version starts
the line, so a canary that grows from 5 to 25 percent keeps its users.
"""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

Target = TypeVar("Target")


def sticky_point(alias: str, user: str) -> float:
    """Hash a user to a fraction in [0, 1), uniform over users and independent between aliases.

    Args:
        alias: globally unique identity of the alias, e.g. ``owner/adapter:name``.
        user: the ``user`` field of the request.
    """
    # The length prefix keeps ("a", "bc") and ("ab", "c") apart.
    digest = hashlib.sha256(f"{len(alias)}:{alias}{user}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def choose(targets: Sequence[tuple[Target, int]], point: float) -> Target:
    """Return the target whose segment of the line of weights contains the point.

    Args:
        targets: targets in the order of the line, at least one, each with a weight above 0.
        point: position in [0, 1).
    """
    position = point * sum(weight for _, weight in targets)
    for target, weight in targets:
        position -= weight
        if position < 0:
            return target
    return targets[-1][0]
