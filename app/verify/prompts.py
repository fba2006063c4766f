"""Prompts for a comparison: random tokens, short and long."""

import random
from collections.abc import Collection, Sequence

#: Prompts of each length.
_EACH = 2
_SHORT = (8, 24, 72)
#: Share of the context that the longest prompt has.
_LONGEST_PART = 4


def default_lengths(context: int, longest: int) -> list[int]:
    """Three short lengths and a long one, in tokens.

    Args:
        context: tokens of the longest sequence.
        longest: upper limit of the long one, which is a quarter of the context at most.
    """
    most = max(1, min(longest, context // _LONGEST_PART))
    return sorted({*(length for length in _SHORT if length < most), most})


def prompts(vocabulary: int, special: Collection[int], lengths: Sequence[int]) -> list[list[int]]:
    """Token ids of two prompts for each length. The same arguments give the same prompts.

    Args:
        vocabulary: number of tokens.
        special: ids without text, which are left out.
        lengths: in tokens.
    """
    chance = random.Random(1)  # noqa: S311 - no secret
    ordinary = [token for token in range(vocabulary) if token not in special]
    return [chance.choices(ordinary, k=length) for length in lengths for _ in range(_EACH)]
