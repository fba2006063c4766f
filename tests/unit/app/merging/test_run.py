"""Merge process compared with PEFT tensor by tensor; results are bit-identical."""

import asyncio
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from adapters.geometry import read_geometry
from adapters.validation import validate
from app.domain.errors import MergeFailed, MergeRejected
from app.merging.child import ChildLimits, merge_in_child
from app.merging.recipe import Recipe, read_recipe
from app.merging.run import Job, hollow_base, merge
from tests.support.peft_adapters import make_adapter, read_config
from tests.support.peft_oracle import (
    VARIANTS,
    differences,
    edit_config,
    load_by_peft,
    merge_by_peft,
    save_real_base,
)

WEIGHTS = (0.7, -0.3, 1.25)
LIMITS = ChildLimits(cpu_seconds=120, address_bytes=2**34, file_bytes=2**24)
METHODS = {variant["method"]: variant for variant in VARIANTS}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_real_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three adapters of the same rank with different scalings."""
    folder = tmp_path_factory.mktemp("sources")
    return [make_adapter(folder / str(seed), seed=seed, lora_alpha=6 * seed) for seed in (1, 2, 3)]


def _recipe(variant: Mapping[str, Any], weights: Sequence[float] = WEIGHTS) -> Recipe:
    versions = [{"version": f"a@{number}", "weight": weight} for number, weight in enumerate(weights, 1)]
    return read_recipe({"sources": versions, **variant})


def _job(base: Path, sources: Sequence[Path], recipe: Recipe, folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return {
        "base": str(base),
        "base_name": "tiny",
        "sources": [str(source) for source in sources],
        "versions": [source.version for source in recipe.sources],
        "arguments": recipe.arguments(),
        "seed": recipe.seed,
        "folder": str(folder),
    }


def _merge(base: Path, sources: Sequence[Path], variant: Mapping[str, Any], folder: Path, **options: Any) -> Path:
    """Merge in this process, and return the folder of the result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert merge(Job(**_job(base, sources, _recipe(variant, **options), folder))) == []
    return folder / "merged"


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def _check_as_an_upload(base: Path, folder: Path) -> None:
    geometry = read_geometry(json.loads((base / "config.json").read_bytes()))
    verdict = validate(folder / "adapter_config.json", folder / "adapter_model.safetensors", geometry, 64)
    assert verdict.reasons == ()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_method_makes_what_peft_makes(
    base: Path, sources: list[Path], variant: dict[str, Any], tmp_path: Path
) -> None:
    expected = merge_by_peft(base, sources, WEIGHTS, variant, tmp_path / "peft")
    merged = _merge(base, sources, variant, tmp_path / "tenora")
    assert differences(_tensors(merged), expected) == []
    _check_as_an_upload(base, merged)


# A child process takes seconds to import torch, so only three methods run in one. They depend on its threads, its
# base's dtype and its random numbers.
@pytest.mark.slow
async def test_so_does_a_child_process(base: Path, sources: list[Path], tmp_path: Path) -> None:
    variant = METHODS["dare_ties"]
    expected = merge_by_peft(base, sources, WEIGHTS, variant, tmp_path / "peft")
    await merge_in_child(_job(base, sources, _recipe(variant), tmp_path / "tenora"), LIMITS)
    assert differences(_tensors(tmp_path / "tenora" / "merged"), expected) == []


@pytest.mark.parametrize("variant", [METHODS[name] for name in ("cat", "svd", "dare_ties")], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_bases_and_adapters_of_16_bits(variant: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    base = save_real_base(tmp_path / "base", dtype)
    sources = [make_adapter(tmp_path / str(seed), seed=seed, dtype=dtype, r=8) for seed in (4, 5)]
    expected = merge_by_peft(base, sources, (1, 0.5), variant, tmp_path / "peft")
    merged = _merge(base, sources, variant, tmp_path / "tenora", weights=(1, 0.5))
    assert differences(_tensors(merged), expected) == []
    _check_as_an_upload(base, merged)


@pytest.mark.parametrize("variant", [METHODS["cat"], METHODS["dare_ties"]], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        ({"target_modules": ["q_proj", "v_proj"]}, {"target_modules": ["k_proj", "v_proj", "down_proj"]}),
        ({"target_modules": r".*\.[012]\.mlp\.(up|down)_proj"}, {"target_modules": r".*self_attn\.q_proj"}),
        ({"layers_to_transform": [0, 2]}, {"layers_to_transform": [0, 2], "target_modules": ["o_proj"]}),
        ({"alpha_pattern": {"q_proj": 3}}, {"alpha_pattern": {"layers.1.mlp.up_proj": 64}}),
        ({"use_rslora": True}, {"use_rslora": False}),
        ({"init_lora_weights": "gaussian"}, {"init_lora_weights": False}),
        ({"init_lora_weights": "orthogonal"}, {}),
    ],
    ids=str,
)
def test_configs_of_every_kind_are_merged_as_peft_merges_them(
    base: Path, variant: dict[str, Any], options: tuple[dict[str, Any], ...], tmp_path: Path
) -> None:
    sources = [make_adapter(tmp_path / str(seed), seed=seed, **each) for seed, each in enumerate(options, 1)]
    expected = merge_by_peft(base, sources, (0.4, 0.6), variant, tmp_path / "peft")
    merged = _merge(base, sources, variant, tmp_path / "tenora", weights=(0.4, 0.6))
    assert differences(_tensors(merged), expected) == []
    _check_as_an_upload(base, merged)


@pytest.mark.parametrize(("variant", "rank"), [({"method": "cat"}, 13), ({"method": "svd"}, 8)], ids=str)
def test_sources_of_several_ranks(base: Path, variant: dict[str, Any], rank: int, tmp_path: Path) -> None:
    sources = [
        make_adapter(tmp_path / "1", seed=1, r=2, rank_pattern={"q_proj": 5, "layers.1.mlp.up_proj": 3}),
        make_adapter(tmp_path / "2", seed=2, r=8),
    ]
    expected = merge_by_peft(base, sources, (0.4, 0.6), variant, tmp_path / "peft")
    merged = _merge(base, sources, variant, tmp_path / "tenora", weights=(0.4, 0.6))
    assert differences(_tensors(merged), expected) == []
    assert read_config(merged)["r"] == rank
    _check_as_an_upload(base, merged)


def test_a_merge_of_rslora_adapters_is_their_weighted_sum(base: Path, tmp_path: Path) -> None:
    """With PEFT's config, the result would be scaled by sqrt(r) a second time."""
    sources = [make_adapter(tmp_path / str(seed), seed=seed, use_rslora=True) for seed in (1, 2)]
    merged = _merge(base, sources, METHODS["cat"], tmp_path / "tenora", weights=(0.4, 0.6))
    first, second, whole = (
        load_by_peft(base, [folder]).base_model.model.model.layers[1].mlp.up_proj.get_delta_weight("a0")
        for folder in (*sources, merged)
    )
    torch.testing.assert_close(whole, 0.4 * first + 0.6 * second)


def test_a_merge_is_determined_by_its_seed(base: Path, sources: list[Path], tmp_path: Path) -> None:
    variant = METHODS["dare_ties"]
    first, again = (_merge(base, sources, variant, tmp_path / name) for name in ("first", "again"))
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (first / file).read_bytes() == (again / file).read_bytes()
    other = _merge(base, sources, variant | {"seed": 5}, tmp_path / "other")
    assert differences(_tensors(other), _tensors(first))


def test_the_result_says_nothing_of_this_machine(base: Path, sources: list[Path], tmp_path: Path) -> None:
    config = read_config(_merge(base, sources, METHODS["linear"], tmp_path / "tenora"))
    assert config["base_model_name_or_path"] == "tiny"
    assert str(tmp_path.parent.parent) not in json.dumps(config)


def test_keys_that_only_training_needs_never_reach_peft(base: Path, tmp_path: Path) -> None:
    """PEFT fails on some of these values, or acts on them."""
    strange = {"lora_dropout": "much", "runtime_config": 5, "eva_config": [1], "auto_mapping": {"a": 1}, "revision": 3}
    sources = [make_adapter(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    expected = merge_by_peft(base, sources, (1, 1), METHODS["linear"], tmp_path / "peft")
    edit_config(sources[0], **strange)
    edit_config(sources[1], init_lora_weights="mica")
    merged = _merge(base, sources, METHODS["linear"], tmp_path / "tenora", weights=(1, 1))
    assert differences(_tensors(merged), expected) == []


@pytest.mark.slow
async def test_a_source_without_some_of_its_tensors_is_refused(base: Path, sources: list[Path], tmp_path: Path) -> None:
    """PEFT would initialise the missing tensors at random and merge them."""
    broken = make_adapter(tmp_path / "broken", seed=9)
    kept = {name: tensor for name, tensor in _tensors(broken).items() if "layers.1.mlp" not in name}
    save_file(kept, broken / "adapter_model.safetensors", metadata={"format": "pt"})
    job = _job(base, [sources[0], broken], _recipe(METHODS["linear"], (1, 1)), tmp_path / "merge")
    with pytest.raises(MergeRejected, match="a@2 lacks 6 tensors"):
        await merge_in_child(job, LIMITS)
    assert not (tmp_path / "merge" / "merged").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "end"),
    [
        ({"cpu_seconds": 0.5}, "was stopped by SIGXCPU"),
        ({"address_bytes": 2**28}, "stopped with an error|was stopped by"),
        ({"file_bytes": 2**14}, "stopped with an error"),
    ],
    ids=str,
)
async def test_a_process_beyond_its_limits_is_stopped(
    base: Path, sources: list[Path], tmp_path: Path, limits: dict[str, Any], end: str
) -> None:
    job = _job(base, sources, _recipe(METHODS["cat"]), tmp_path / "merge")
    allowed = {"cpu_seconds": 120, "address_bytes": 2**34, "file_bytes": 2**24} | limits
    with pytest.raises(MergeFailed, match=end):
        await merge_in_child(job, ChildLimits(**allowed))


async def test_a_cancelled_merge_leaves_no_process(base: Path, sources: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "merge"
    merging = asyncio.create_task(merge_in_child(_job(base, sources, _recipe(METHODS["svd"]), folder), LIMITS))
    while not any(folder.iterdir()):
        await asyncio.sleep(0.01)
    merging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await merging
    assert not [child for child in psutil.Process().children() if "app.merging" in child.cmdline()]
    assert not (folder / "merged").exists()


def test_the_hollow_base_takes_no_memory(base: Path) -> None:
    model = hollow_base(base)
    assert {weight.untyped_storage().nbytes() for weight in model.parameters()} == {4}
    assert {name: weight.shape for name, weight in model.named_parameters()} == {
        name: weight.shape for name, weight in AutoModelForCausalLM.from_pretrained(base).named_parameters()
    }
