"""How an alias that splits its traffic chooses a version for one request. Pure.

A request that names a ``user`` gets the same version as long as the weights stay: the first 7 bytes of
SHA-256 over the alias's identity and the user, as a fraction of 2**56, is a point in the line of weights. The
newest version has the line's beginning, so a canary that grows from 5 to 25 percent keeps those it had.
"""

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

Target = TypeVar("Target")


def sticky_point(alias: str, user: str) -> float:
    """A fraction in [0, 1), uniform over users and unrelated between aliases.

    Args:
        alias: what identifies the alias among all, e.g. ``owner/adapter:name``.
    """
    # The length keeps ("a", "bc") and ("ab", "c") apart.
    digest = hashlib.sha256(f"{len(alias)}:{alias}{user}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def random_point() -> float:
    return random.random()  # noqa: S311 - spreads load, keeps no secret


def choose(targets: Sequence[tuple[Target, int]], point: float) -> Target:
    """The target whose stretch of the line of weights holds the point.

    Args:
        targets: in the order of the line, each with a weight above 0; at least one.
        point: in [0, 1).
    """
    position = point * sum(weight for _, weight in targets)
    for target, weight in targets:
        position -= weight
        if position < 0:
            return target
    return targets[-1][0]
