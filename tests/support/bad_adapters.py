"""Adapters that must not reach the engine, each made from a good one by one change.

:data:`BAD` maps a name to the change and to the reason code that must be among the reported ones. The changes work on
any good adapter of a Llama. It needs lora_A and lora_B for a packed module (q, k, v, gate or up) in layer 0.
"""

import pytest

from tests.support.bad_configs import BAD_CONFIGS, BadAdapter
from tests.support.bad_weights import BAD_WEIGHTS

BAD: dict[str, BadAdapter] = BAD_CONFIGS | BAD_WEIGHTS

#: Parametrization by name. Each slow regular expression takes all the CPU time that patterns get.
EACH_BAD = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name.startswith("slow regular expression") else [])
        for name in BAD
    ],
)
