import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapters.errors import AdapterRejected, Reason
from adapters.geometry import LINEAR_MODULES, BaseGeometry
from adapters.validation import Verdict, validate
from tests.support.bad_adapters import BAD, EACH_BAD
from tests.support.bad_configs import config
from tests.support.bad_weights import first
from tests.support.peft_adapters import make_adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def check(directory: Path, geometry: BaseGeometry, max_lora_rank: int = 64) -> Verdict:
    return validate(directory / CONFIG, directory / WEIGHTS, geometry, max_lora_rank)


def codes(verdict: Verdict) -> set[str]:
    return {reason.code for reason in verdict.reasons}


def test_accepts_what_peft_wrote(good_adapter: Path, geometry: BaseGeometry) -> None:
    verdict = check(good_adapter, geometry)
    assert verdict.reasons == ()
    summary = verdict.accepted()
    assert (summary.rank, summary.alpha, summary.target_modules) == (4, 8.0, LINEAR_MODULES)
    tensors = load_file(good_adapter / WEIGHTS)
    assert summary.parameters == sum(tensor.numel() for tensor in tensors.values())
    assert summary.dtype == "F32"


@pytest.mark.parametrize(
    ("options", "rank"),
    [
        ({"target_modules": ["q_proj"]}, 4),
        ({"target_modules": ["k_proj", "up_proj"], "r": 1}, 1),
        ({"target_modules": "all-linear"}, 4),
        ({"target_modules": r"model\.layers\.[01]\.self_attn\.(q|v)_proj"}, 4),
        ({"target_modules": ["self_attn.o_proj", "model.layers.1.mlp.down_proj"]}, 4),
        ({"layers_to_transform": [0, 2], "layers_pattern": "layers"}, 4),
        ({"layers_to_transform": 1}, 4),
        ({"exclude_modules": ["layers.0.self_attn.q_proj", "up_proj"], "target_modules": ["q_proj", "v_proj"]}, 4),
        ({"rank_pattern": {"q_proj": 8, "layers.1.mlp.up_proj": 2}, "alpha_pattern": {"v_proj": 3}}, 8),
        ({"use_rslora": True, "init_lora_weights": "gaussian", "lora_dropout": 0.1}, 4),
        ({"r": 64, "lora_alpha": 1}, 64),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_accepts_what_the_engine_serves(
    tmp_path: Path, geometry: BaseGeometry, options: dict[str, Any], rank: int, dtype: torch.dtype
) -> None:
    verdict = check(make_adapter(tmp_path, dtype=dtype, **options), geometry)
    assert verdict.reasons == ()
    assert verdict.accepted().rank == rank


@EACH_BAD
def test_refuses_each_bad_adapter_with_its_reason(
    name: str, good_adapter: Path, geometry: BaseGeometry, tmp_path: Path
) -> None:
    directory = shutil.copytree(good_adapter, tmp_path / "bad")
    BAD[name].change(directory)
    verdict = check(directory, geometry)
    assert BAD[name].code in codes(verdict)
    with pytest.raises(AdapterRejected) as raised:
        verdict.accepted()
    assert raised.value.reasons == verdict.reasons
    for reason in verdict.reasons:
        parts = (reason.field, reason.found, reason.allowed, *reason.examples)
        assert reason.message.isprintable()
        assert all(part.isprintable() and len(part) <= 400 for part in parts)
    kinds = [(reason.code, reason.sentence) for reason in verdict.reasons]
    assert len(set(kinds)) == len(kinds)


def test_names_the_tensor_the_value_and_what_is_allowed(
    good_adapter: Path, geometry: BaseGeometry, tmp_path: Path
) -> None:
    directory = shutil.copytree(good_adapter, tmp_path / "bad")
    tensors = load_file(directory / WEIGHTS)
    name = "base_model.model.model.layers.2.mlp.down_proj.lora_A.weight"
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, directory / WEIGHTS)
    assert check(directory, geometry).reasons == (Reason("shape_mismatch", name, "shape [4, 111]", "[rank, 112]"),)


def test_gives_the_reasons_of_both_files_at_once(good_adapter: Path, geometry: BaseGeometry, tmp_path: Path) -> None:
    directory = shutil.copytree(good_adapter, tmp_path / "bad")
    for name in ("feature use_dora", "alpha 0", "shape smaller than the base's, inputs", "NaN", "no peft_type"):
        BAD[name].change(directory)
    expected = {"unsupported_feature", "invalid_value", "shape_mismatch", "non_finite", "unsupported_peft_type"}
    assert codes(check(directory, geometry)) == expected


def test_config_reasons_come_with_unreadable_weights(
    good_adapter: Path, geometry: BaseGeometry, tmp_path: Path
) -> None:
    directory = shutil.copytree(good_adapter, tmp_path / "bad")
    for name in ("feature use_dora", "pickle of torch"):
        BAD[name].change(directory)
    assert codes(check(directory, geometry)) == {"unsupported_feature", "pickle_format"}


def test_weights_reasons_come_with_an_unreadable_config(
    good_adapter: Path, geometry: BaseGeometry, tmp_path: Path
) -> None:
    directory = shutil.copytree(good_adapter, tmp_path / "bad")
    for name in ("config is empty", "layer out of range"):
        BAD[name].change(directory)
    assert codes(check(directory, geometry)) == {"config_not_json", "layer_out_of_range"}


def test_a_thousand_reasons_of_one_kind_are_one(good_adapter: Path, geometry: BaseGeometry, tmp_path: Path) -> None:
    directory = shutil.copytree(good_adapter, tmp_path / "bad")
    config(**{f"key{i}": 1 for i in range(1000)})(directory)
    (reason,) = check(directory, geometry).reasons
    assert (reason.code, reason.field, reason.count) == ("unknown_key", "key0", 1000)
    assert reason.examples == ("key0", "key1", "key2")
    assert reason.message.endswith("The same holds for 999 more, such as key1 and key2.")


@pytest.mark.parametrize(("max_lora_rank", "accepted"), [(4, True), (3, False)])
def test_compares_the_rank_with_the_engine_s(
    good_adapter: Path, geometry: BaseGeometry, max_lora_rank: int, accepted: bool
) -> None:
    verdict = check(good_adapter, geometry, max_lora_rank)
    assert codes(verdict) == (set() if accepted else {"rank_too_large"})


@pytest.mark.parametrize(
    ("dtype", "value", "finite"),
    [
        ("float16", 65504.0, True),
        ("float16", 65519.0, True),
        ("float16", 65520.0, False),
        ("bfloat16", 65520.0, True),
        ("bfloat16", 3.3895e38, True),
        ("bfloat16", 3.4e38, False),
        ("float32", 3.4e38, True),
    ],
)
def test_refuses_values_that_the_cast_makes_infinite(
    good_adapter: Path, geometry: BaseGeometry, tmp_path: Path, dtype: str, value: float, finite: bool
) -> None:
    directory = shutil.copytree(good_adapter, tmp_path / "cast")
    tensors = load_file(directory / WEIGHTS)
    tensors[first(tensors, "lora_A")][1, 1] = -value
    save_file(tensors, directory / WEIGHTS)
    # The engine converts with torch, so torch is the reference.
    assert math.isfinite(torch.tensor(value).to(getattr(torch, dtype)).item()) is finite
    verdict = check(directory, dataclasses.replace(geometry, dtype=dtype))
    assert codes(verdict) == (set() if finite else {"non_finite"})


def test_a_pattern_s_scaling_counts(good_adapter: Path, geometry: BaseGeometry, tmp_path: Path) -> None:
    directory = shutil.copytree(good_adapter, tmp_path / "scaled")
    tensors = load_file(directory / WEIGHTS)
    tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"][0, 0] = 30_000.0
    save_file(tensors, directory / WEIGHTS)
    half = dataclasses.replace(geometry, dtype="float16")
    assert check(directory, half).reasons == ()
    path = directory / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {"alpha_pattern": {"layers.1.self_attn.q_proj": 12}}))
    assert codes(check(directory, half)) == {"non_finite"}


@EACH_BAD
def test_the_header_alone_gives_all_reasons_but_those_of_values(
    good_adapter: Path, geometry: BaseGeometry, tmp_path: Path, name: str
) -> None:
    directory = shutil.copytree(good_adapter, tmp_path / "bad")
    BAD[name].change(directory)
    whole = check(directory, geometry)
    weights = directory / WEIGHTS
    size, length = weights.stat().st_size, int.from_bytes(weights.read_bytes()[:8], "little")
    weights.write_bytes(weights.read_bytes()[: 8 + min(length, 2**20)])
    verdict = validate(directory / CONFIG, weights, geometry, 64, whole_bytes=size)
    assert verdict.reasons == tuple(reason for reason in whole.reasons if reason.code != "non_finite")
    assert (verdict.summary is None) == bool(verdict.reasons)


def test_the_header_alone_gives_the_summary(good_adapter: Path, geometry: BaseGeometry, tmp_path: Path) -> None:
    raw = (good_adapter / WEIGHTS).read_bytes()
    head = tmp_path / WEIGHTS
    head.write_bytes(raw[: 8 + int.from_bytes(raw[:8], "little")])
    verdict = validate(good_adapter / CONFIG, head, geometry, 64, whole_bytes=len(raw))
    assert verdict == check(good_adapter, geometry)
