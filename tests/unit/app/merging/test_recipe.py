"""Merge recipes: all reasons for a refusal are reported at once, and PEFT accepts what passes."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model

from adapters.geometry import read_geometry
from adapters.manifest import Manifest, parse_manifest
from app.domain.errors import MergeRejected
from app.merging.recipe import MAX_SOURCES, Method, Recipe, check_sources, read_recipe
from tests.support.peft_adapters import TINY_LLAMA, tiny_llama

GEOMETRY = read_geometry(TINY_LLAMA | {"architectures": ["LlamaForCausalLM"]})
TWO = [{"version": "pricing@1", "weight": 0.5}, {"version": "supply@12", "weight": -1}]


def _fields(raw: dict[str, Any]) -> list[str]:
    with pytest.raises(MergeRejected) as caught:
        read_recipe(raw)
    return [reason.field for reason in caught.value.reasons]


def _manifest(**options: Any) -> Manifest:
    defaults = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}

    return parse_manifest(json.dumps(defaults | options).encode())


def _refusals(recipe: Recipe, *manifests: Manifest, max_rank: int = 16) -> list[tuple[str, str]]:
    return [(reason.code, reason.field) for reason in check_sources(recipe, manifests, GEOMETRY, max_rank)]


def test_a_recipe_says_what_peft_is_asked_for() -> None:
    recipe = read_recipe({"sources": TWO, "method": "ties", "density": 0.25, "majority_sign_method": "frequency"})
    assert recipe.arguments() == {
        "weights": [0.5, -1.0],
        "combination_type": "ties",
        "density": 0.25,
        "majority_sign_method": "frequency",
    }
    assert recipe.provenance(["a" * 64, "b" * 64]) == {
        "method": "ties",
        "sources": [
            {"version": "pricing@1", "digest": f"sha256:{'a' * 64}", "weight": 0.5},
            {"version": "supply@12", "digest": f"sha256:{'b' * 64}", "weight": -1.0},
        ],
        "density": 0.25,
        "majority_sign_method": "frequency",
    }


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"method": "average"}, "method"),
        ({"method": None}, "method"),
        ({"sources": []}, "sources"),
        ({"sources": TWO[:1]}, "sources"),
        ({"sources": [{"version": f"a@{n + 1}", "weight": 1} for n in range(MAX_SOURCES + 1)]}, "sources"),
        ({"sources": [TWO[0], TWO[0]]}, "sources.1.version"),
        *(
            ({"sources": [TWO[0], {"version": version, "weight": 1}]}, "sources.1.version")
            for version in ("", "a", "a@0", "a@-1", "a@1@2", "a:default", "A@1", "other/a@1", "a@99999999999", "a@1\n")
        ),
        *(
            ({"sources": [TWO[0], {"version": "a@1", "weight": weight}]}, "sources.1.weight")
            for weight in (math.nan, math.inf, -math.inf, 101, -100.5, 10**400, None)
        ),
        ({"method": "ties"}, "density"),
        *(({"method": "dare_linear", "density": density}, "density") for density in (0, -0.5, 1.01, math.nan)),
        ({"method": "linear", "density": 0.5}, "density"),
        ({"method": "svd", "density": 1.0}, "density"),
        ({"method": "dare_linear", "density": 0.5, "majority_sign_method": "total"}, "majority_sign_method"),
        ({"method": "ties", "density": 0.5, "majority_sign_method": "loudest"}, "majority_sign_method"),
        ({"method": "cat", "svd_rank": 4}, "svd_rank"),
        ({"method": "svd", "svd_rank": 0}, "svd_rank"),
        ({"method": "linear", "svd_full_matrices": False}, "svd_full_matrices"),
        ({"method": "ties", "density": 0.5, "seed": 1}, "seed"),
        ({"method": "dare_ties", "density": 0.5, "seed": -1}, "seed"),
        ({"method": "dare_ties", "density": 0.5, "seed": 2**32}, "seed"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(raw: dict[str, Any], field: str) -> None:
    assert _fields({"sources": TWO, "method": "linear"} | raw) == [field]


def test_every_reason_is_given_at_once() -> None:
    raw = {
        "sources": [{"version": "pricing", "weight": math.nan}, {"version": "a@1", "weight": 1}],
        "method": "dare_linear",
        "svd_rank": 0,
        "seed": -1,
    }
    fields = _fields(raw)
    assert sorted(set(fields)) == ["density", "seed", "sources.0.version", "sources.0.weight", "svd_rank"]


def test_ranks_that_differ_are_for_cat_and_svd() -> None:
    different = _manifest(r=4), _manifest(r=8)
    patterned = _manifest(r=4), _manifest(r=4, rank_pattern={"layers.1.self_attn.q_proj": 2})
    for method in Method:
        extra = {} if method in {Method.LINEAR, Method.CAT, Method.SVD} else {"density": 0.5}
        recipe = read_recipe({"sources": TWO, "method": method.value, **extra})
        expected = [] if method in {Method.CAT, Method.SVD} else [("rank_mismatch", "sources")]
        assert _refusals(recipe, *different) == _refusals(recipe, *patterned) == expected
        assert _refusals(recipe, _manifest(), _manifest()) == []


def test_the_results_rank_is_one_that_the_engine_serves() -> None:
    cat = read_recipe({"sources": TWO, "method": "cat"})
    assert _refusals(cat, _manifest(r=8), _manifest(r=4, rank_pattern={"q_proj": 8})) == []
    assert _refusals(cat, _manifest(r=8), _manifest(r=9)) == [("rank_too_large", "sources")]
    svd = read_recipe({"sources": TWO, "method": "svd", "svd_rank": 17})
    assert _refusals(svd, _manifest(), _manifest()) == [("rank_too_large", "sources")]


def test_svd_cannot_give_more_ranks_than_a_module_has_dimensions() -> None:
    """PEFT fails with a shape error here. k_proj of the tiny base is 64 by 40."""
    narrow, wide = _manifest(target_modules=["k_proj"]), _manifest(target_modules=["q_proj"])
    for rank, sources, expected in (
        (41, (narrow, wide), ["svd_rank"]),
        (40, (narrow, wide), []),
        (64, (wide, wide), []),
    ):
        recipe = read_recipe({"sources": TWO, "method": "svd", "svd_rank": rank})
        assert [field for _, field in _refusals(recipe, *sources, max_rank=100)] == expected


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        ({"target_modules": ".*q_proj"}, {}, "target_modules"),
        ({"layers_to_transform": [0]}, {}, "layers_to_transform"),
        ({"exclude_modules": ["layers.0.self_attn.q_proj"]}, {}, "exclude_modules"),
    ],
)
def test_sources_whose_modules_peft_would_confuse_are_refused(
    first: dict[str, Any], second: dict[str, Any], field: str
) -> None:
    recipe = read_recipe({"sources": TWO, "method": "cat"})
    assert _refusals(recipe, _manifest(**first), _manifest(**second)) == [("targets_mismatch", field)]
    assert _refusals(recipe, _manifest(**first), _manifest(**first)) == []


def test_peft_itself_leaves_out_what_the_first_source_leaves_out() -> None:
    """This is why layers_to_transform must be the same in all sources."""
    model = get_peft_model(tiny_llama(), LoraConfig(target_modules=["q_proj"], layers_to_transform=[0]), "first")
    model.add_adapter("second", LoraConfig(target_modules=["q_proj"], layers_to_transform=[1]))
    model.add_weighted_adapter(["first", "second"], [1, 1], "sum", combination_type="cat")
    adapted = {name.split(".layers.")[1][0] for name, _ in model.named_parameters() if ".lora_A.sum." in name}
    assert adapted == {"0"}


def test_all_linear_is_a_list_as_peft_sees_it() -> None:
    recipe = read_recipe({"sources": TWO, "method": "linear"})
    assert _refusals(recipe, _manifest(target_modules="all-linear"), _manifest()) == []


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(list(Method))
)
numbers = st.one_of(st.none(), st.integers(), st.floats())


@given(
    sources=st.lists(st.fixed_dictionaries({"version": st.text(max_size=12), "weight": numbers}), max_size=10)
    | st.just(TWO),
    method=values,
    density=numbers,
    sign=st.none() | st.text(max_size=9) | st.sampled_from(["total", "frequency"]),
    svd_rank=st.none() | st.integers(),
    seed=st.none() | st.integers(),
)
def test_any_recipe_is_taken_or_refused(
    sources: Any, method: Any, density: Any, sign: Any, svd_rank: Any, seed: Any
) -> None:
    raw = {"sources": sources, "method": method, "density": density, "majority_sign_method": sign}
    try:
        recipe = read_recipe(raw | {"svd_rank": svd_rank, "seed": seed})
    except MergeRejected:
        return
    assert 2 <= len(recipe.sources) <= MAX_SOURCES
    assert all(math.isfinite(source.weight) for source in recipe.sources)
    assert recipe.density is None or 0 < recipe.density <= 1
