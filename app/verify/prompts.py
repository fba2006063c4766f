"""Prompts for a verification: random tokens, short and long."""

import random
from collections.abc import Collection, Sequence

#: Number of prompts of each length.
_EACH = 2
_SHORT = (8, 24, 72)
#: Divisor of the context length that gives the longest prompt.
_LONGEST_PART = 4


def default_lengths(context: int, longest: int) -> list[int]:
    """Return three short lengths and a long one, in tokens.

    Args:
        context: context length in tokens.
        longest: upper limit of the long prompt, which is at most a quarter of the context.
    """
    longest = max(1, min(longest, context // _LONGEST_PART))
    return sorted({*(length for length in _SHORT if length < longest), longest})


def prompts(vocabulary: int, special: Collection[int], lengths: Sequence[int]) -> list[list[int]]:
    """Generate two prompts of token ids for each length. Equal arguments give equal prompts.

    Args:
        vocabulary: size of the vocabulary in tokens.
        special: ids of tokens without text, which are left out.
        lengths: prompt lengths in tokens.
    """
    chance = random.Random(1)  # noqa: S311 - not used for security
    ordinary = [token for token in range(vocabulary) if token not in special]
    return [chance.choices(ordinary, k=length) for length in lengths for _ in range(_EACH)]
