"""Look-up of patterns that are full module names, with the same result as vLLM's regular expressions."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.lora.peft_helper import PEFTHelper

from adapters.geometry import read_geometry
from app.engine.vllm.worker.stager import Copied, look_up_full_names

GEOMETRY = read_geometry(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 80,
        "num_attention_heads": 2,
        "vocab_size": 8,
    }
)
FULL_NAMES = list(GEOMETRY.modules())
NAMES = st.sampled_from(FULL_NAMES)


def helper(**patterns: dict[str, int]) -> PEFTHelper:
    return PEFTHelper(r=8, lora_alpha=16, target_modules=["q_proj"], **patterns)


@given(
    ranks=st.dictionaries(NAMES, st.integers(1, 64), max_size=20),
    alphas=st.dictionaries(NAMES | st.sampled_from(["q_proj", "1.mlp.up_proj", "m"]), st.integers(1, 64), max_size=20),
    module=NAMES,
)
def test_a_module_has_the_rank_and_the_scaling_that_vllm_finds(
    ranks: dict[str, int], alphas: dict[str, int], module: str
) -> None:
    looked_up = helper(rank_pattern=ranks, alpha_pattern=alphas)
    look_up_full_names(looked_up)
    assert looked_up.get_rank_and_scaling(module) == helper(
        rank_pattern=ranks, alpha_pattern=alphas
    ).get_rank_and_scaling(module)


@pytest.mark.parametrize("names", [["q_proj"], ["model.layers.0.self_attn.q_proj", "q_proj"], ["^lm_head"]])
def test_other_patterns_stay_with_vllm(names: list[str]) -> None:
    found = helper(alpha_pattern=dict.fromkeys(names, 4))
    look_up_full_names(found)
    assert "_match_pattern" not in vars(found)


def test_rank_and_alpha_patterns_of_a_70b_are_looked_up() -> None:
    """With regular expressions, of which vLLM caches 500, this takes minutes."""
    found = helper(
        rank_pattern={name: 1 + index % 20 for index, name in enumerate(FULL_NAMES)},
        alpha_pattern={name: 2 + index % 30 for index, name in enumerate(FULL_NAMES)},
    )
    look_up_full_names(found)
    assert "_match_pattern" in vars(found)
    for index, name in enumerate(FULL_NAMES):
        assert found.get_rank_and_scaling(name) == (1 + index % 20, (2 + index % 30) / (1 + index % 20))


def test_vllm_calls_the_helpers_method_by_name() -> None:
    assert inspect.getsource(PEFTHelper.get_rank_and_scaling).count("self._match_pattern(") == 2
    assert "peft_helper=peft_helper" in inspect.getsource(Copied.from_local_checkpoint)
    assert 're.match(rf"(.*\\.)?({key})$", name)' in inspect.getsource(PEFTHelper._match_pattern)
