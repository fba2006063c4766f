import dataclasses
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key
from vllm.lora.peft_helper import PEFTHelper

from adapters.errors import AdapterRejected
from adapters.geometry import ATTENTION_MODULES, LINEAR_MODULES, MLP_MODULES
from adapters.manifest import Manifest, parse_manifest, read_manifest
from adapters.patterns import InvalidPattern
from adapters.peft_keys import INFORMATIONAL, REFUSED, SERVED, TRAINING_ONLY
from tests.support.peft_adapters import make_adapter

MINIMAL = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}

LINEAR = [f"self_attn.{name}" for name in ATTENTION_MODULES] + [f"mlp.{name}" for name in MLP_MODULES]
MODULES = st.builds("model.layers.{}.{}".format, st.integers(0, 12), st.sampled_from(LINEAR))
ENDS = MODULES.flatmap(
    lambda module: st.integers(0, 4).map(lambda start: ".".join(module.split(".")[start:]))
) | st.from_regex(r"[qkv._proj0-9A-Z]{1,12}", fullmatch=True)


def parse(**values: Any) -> Manifest:
    return parse_manifest(json.dumps(MINIMAL | values).encode())


def test_every_key_of_peft_has_exactly_one_kind() -> None:
    keys = {field.name for field in dataclasses.fields(LoraConfig)}
    assert len(SERVED) + len(INFORMATIONAL) + len(REFUSED) == len(SERVED | INFORMATIONAL | REFUSED)
    assert keys == SERVED | INFORMATIONAL | REFUSED


def test_every_key_that_the_engine_reads_is_served_or_refused() -> None:
    read = {field.name for field in dataclasses.fields(PEFTHelper) if not field.name.startswith("vllm_")}
    assert read <= SERVED | REFUSED


def test_reads_what_peft_wrote(tmp_path: Path) -> None:
    directory = make_adapter(tmp_path, use_rslora=True, rank_pattern={"q_proj": 8}, layers_to_transform=[0, 1])
    manifest = parse_manifest((directory / "adapter_config.json").read_bytes())
    assert (manifest.rank, manifest.alpha, manifest.rslora, manifest.largest_rank) == (4, 8.0, True, 8)
    assert manifest.targets == frozenset(LINEAR_MODULES)
    assert manifest.layers == {0, 1}


def test_a_config_key_of_another_tool_has_no_effect() -> None:
    keys = {field.name for field in dataclasses.fields(LoraConfig)} | {
        field.name for field in dataclasses.fields(PEFTHelper)
    }
    assert not keys & TRAINING_ONLY
    assert parse(**{key: [1] for key in TRAINING_ONLY}) == parse()


def test_an_enabled_unknown_key_is_refused_with_advice() -> None:
    _, reasons = read_manifest(json.dumps(MINIMAL | {"use_something_new": True, "another": None}).encode())
    (reason,) = reasons
    assert (reason.code, reason.field) == ("unknown_key", "use_something_new")
    assert reason.allowed == "not a key of PEFT's LoraConfig 0.21; remove it if it is only about training"


@given(
    module=MODULES,
    ranks=st.dictionaries(ENDS, st.integers(1, 64), max_size=6),
    alphas=st.dictionaries(ENDS, st.floats(0.5, 64) | st.integers(1, 64), max_size=6),
    rslora=st.booleans(),
)
def test_patterns_mean_what_they_mean_to_peft_and_to_the_engine(
    module: str, ranks: dict[str, int], alphas: dict[str, float], rslora: bool
) -> None:
    manifest = parse(rank_pattern=ranks, alpha_pattern=alphas, use_rslora=rslora)
    assert manifest.rank_of(module) == ranks.get(get_pattern_key(list(ranks), module), 8)
    assert manifest.alpha_of(module) == alphas.get(get_pattern_key(list(alphas), module), 16)
    engine = PEFTHelper.from_dict(MINIMAL | {"rank_pattern": ranks, "alpha_pattern": alphas, "use_rslora": rslora})
    assert engine.get_rank_and_scaling(module) == (manifest.rank_of(module), manifest.scaling_of(module))


# Pieces of typical regular expressions, combined in any order.
PIECES = st.sampled_from(
    [
        "^",
        ".*",
        r"\.",
        "layers",
        "[01]",
        r"\d+",
        "model",
        "self_attn",
        "(q|v)_proj",
        "q_proj",
        "(?:mlp)",
        "$",
        "|",
        "(",
        "+",
    ]
)
EXPRESSIONS = st.lists(PIECES, min_size=1, max_size=5).map("".join)


@given(
    module=MODULES | st.just("lm_head"), patterns=st.dictionaries(EXPRESSIONS | ENDS, st.integers(1, 64), max_size=4)
)
def test_expressions_mean_what_they_mean_to_peft(module: str, patterns: dict[str, int]) -> None:
    try:
        expected = patterns.get(get_pattern_key(list(patterns), module), 8)
    except re.error:
        with pytest.raises(InvalidPattern):
            parse(rank_pattern=patterns).rank_of(module)
    else:
        assert parse(rank_pattern=patterns).rank_of(module) == expected


@given(
    module=MODULES | st.just("lm_head"),
    targets=EXPRESSIONS | st.lists(ENDS, min_size=1, max_size=3),
    excluded=EXPRESSIONS | st.lists(ENDS, max_size=3),
)
def test_targets_and_exclusions_mean_what_they_mean_to_peft(
    module: str, targets: str | list[str], excluded: str | list[str]
) -> None:
    config = LoraConfig(target_modules=targets, exclude_modules=excluded)
    try:
        found = check_target_module_exists(config, module)
        # PEFT does not evaluate the targets for an excluded module, but it would for another module of the model.
        re.compile(targets if isinstance(targets, str) else "")
    except re.error:
        with pytest.raises(InvalidPattern):
            parse(target_modules=targets, exclude_modules=excluded).declare(module)
        return
    declared = parse(target_modules=targets, exclude_modules=excluded).declare(module)
    assert (declared.targeted and not declared.excluded) is bool(found)


@pytest.mark.parametrize(("value", "targets"), [("all-linear", frozenset(LINEAR_MODULES)), (r".*\.(q|v)_proj", None)])
def test_target_modules_in_one_string(value: str, targets: frozenset[str] | None) -> None:
    assert parse(target_modules=value).targets == targets


@pytest.mark.parametrize(
    "values",
    [
        {"use_dora": None, "kasa_config": {}, "modules_to_save": [], "megatron_config": None, "lora_bias": False},
        {"something_new": None, "something_else": False, "a_third": [], "a_fourth": {}, "a_fifth": "", "a_sixth": 0},
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}, "lora_dropout": 0.05},
        {"init_lora_weights": None, "exclude_modules": None, "layers_to_transform": None, "layers_pattern": []},
        {"rank_pattern": None, "alpha_pattern": None, "use_rslora": None},
        {"base_model_name_or_path": "C:\\\\u0000", "revision": "\\u0000"},
        {"auto_mapping": {"base_model_class": "LlamaForCausalLM"}, "base_model_name_or_path": "meta/llama \U0001f999"},
    ],
)
def test_what_makes_no_difference_is_accepted(values: dict[str, Any]) -> None:
    assert parse(**values) == parse()


def test_all_reasons_come_at_once() -> None:
    raw = json.dumps({"peft_type": "IA3", "r": True, "use_dora": True, "novel": 1, "bias": "all"}).encode()
    manifest, reasons = read_manifest(raw)
    assert manifest is None
    assert {reason.field for reason in reasons} == {
        "peft_type", "r", "use_dora", "novel", "bias", "lora_alpha", "target_modules"
    }  # fmt: skip
    with pytest.raises(AdapterRejected) as raised:
        parse_manifest(raw)
    assert raised.value.reasons == tuple(reasons)


@given(st.binary(max_size=200))
def test_any_bytes_are_rejected_with_a_reason(raw: bytes) -> None:
    with pytest.raises(AdapterRejected) as raised:
        parse_manifest(raw)
    assert raised.value.reasons


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(SERVED | REFUSED | INFORMATIONAL)), JSON, max_size=6))
def test_any_values_give_a_manifest_or_reasons(values: dict[str, Any]) -> None:
    manifest, reasons = read_manifest(json.dumps(MINIMAL | values).encode())
    assert (manifest is None) is bool(reasons)
    if manifest is not None:
        with suppress(InvalidPattern):
            declared = manifest.declare("model.layers.0.self_attn.q_proj")
            assert declared.rank >= 1
            assert 0 < declared.scaling < float("inf")
        # The engine must accept every accepted config.
        engine = PEFTHelper.from_dict(MINIMAL | values)
        assert engine._validate_features() == []
