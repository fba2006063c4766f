"""Prompts that a model is asked for comparison: short and long ones of any tokens that its vocabulary has."""

import random
from collections.abc import Collection

_SHORT = (8, 24, 72)
#: Parts of the context that the longest prompt has, and the most tokens.
_PART, _LONGEST = 4, 2048


def prompts(vocabulary: int, special: Collection[int], *, context: int, longest: int = _LONGEST) -> list[list[int]]:
    """Token ids, always the same for the same base.

    Args:
        vocabulary: number of tokens.
        special: ids that stand for no text.
        context: tokens that a sequence may have.
        longest: most tokens of a prompt; a quarter of the context at most.
    """
    chance = random.Random(1)  # noqa: S311 - nothing is to be kept secret
    ordinary = [token for token in range(vocabulary) if token not in special]
    most = min(longest, context // _PART)
    lengths = sorted({*(length for length in _SHORT if length < most), max(1, most)})
    return [chance.choices(ordinary, k=length) for length in lengths for _ in range(2)]
