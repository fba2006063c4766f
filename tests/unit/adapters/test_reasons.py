"""Messages for a refused adapter: one sentence for each kind of reason, the first one with a remedy."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from adapters.bases import same_base
from adapters.errors import AdapterRejected, Reason, grouped
from adapters.geometry import BaseGeometry
from adapters.sandbox import inspect_in_child
from adapters.validation import precheck, validate
from adapters.wording import SENTENCES
from tests.support.bad_adapters import BAD, EACH_BAD
from tests.support.bad_configs import config, without
from tests.support.peft_adapters import make_adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

Tensors = Mapping[str, torch.Tensor]


@pytest.fixture
def folder(good_adapter: Path, tmp_path: Path) -> Path:
    """Copy of a good adapter that the test may change."""
    return shutil.copytree(good_adapter, tmp_path / "adapter")


def rewrite(folder: Path, edit: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]]) -> None:
    tensors = dict(edit(name, tensor) for name, tensor in load_file(folder / WEIGHTS).items())
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)


def rename(folder: Path, edit: Callable[[str], str]) -> None:
    rewrite(folder, lambda name, tensor: (edit(name), tensor))


def reasons(folder: Path, geometry: BaseGeometry, **options: Any) -> tuple[Reason, ...]:
    return validate(folder / CONFIG, folder / WEIGHTS, geometry, 64, **options).reasons


def only(folder: Path, geometry: BaseGeometry, code: str) -> Reason:
    """Return the first reason and check its code; only targets without tensors may follow from it."""
    found = reasons(folder, geometry)
    assert found[0].code == code, found
    assert {reason.code for reason in found[1:]} <= {"target_without_tensors"}
    return found[0]


def test_kinds_have_a_count_and_three_examples() -> None:
    many = [Reason("tensor_name", f"t{i}", f"t{i}", "names") for i in range(7)]
    other = Reason("tensor_name", "u", "u", "names", "Another kind of name.")
    one = Reason("rank_too_large", "r", "rank 9", "at most 8")
    found = grouped([*many, other, one])
    assert [(reason.field, reason.count, reason.examples) for reason in found] == [
        ("t0", 7, ("t0", "t1", "t2")),
        ("u", 1, ()),
        ("r", 1, ()),
    ]
    assert found[0].message.endswith("The same holds for 6 more, such as t1 and t2.")
    assert grouped(found) == found


def test_values_of_one_field_are_told_apart() -> None:
    (found,) = grouped(Reason("unsupported_target", "target_modules", name, "q_proj") for name in "abcd")
    assert (found.count, found.examples) == (4, ("a", "b", "c"))


def test_each_key_of_the_config_is_a_kind_of_its_own() -> None:
    raw = [("unsupported_feature", "use_dora"), ("unsupported_feature", "bias"), ("invalid_value", "r")]
    patterns = [("invalid_value", f"rank_pattern['m{i}']") for i in range(500)]
    found = grouped(Reason(code, field, "x", "y") for code, field in raw + patterns)
    assert [(reason.field, reason.count) for reason in found] == [
        *((field, 1) for _, field in raw),
        ("rank_pattern['m0']", 500),
    ]


@given(st.lists(st.builds(Reason, st.sampled_from(sorted(SENTENCES)), st.text(), st.text(), st.text()), min_size=1))
def test_no_reason_is_lost_and_none_is_said_twice(given_reasons: list[Reason]) -> None:
    found = grouped(given_reasons)
    assert sum(reason.count for reason in found) == len(given_reasons)
    assert {reason.code for reason in found} == {reason.code for reason in given_reasons}
    assert all(len(reason.examples) <= 3 for reason in found)
    assert all(reason.message for reason in found)
    assert tuple(Reason.read(json.loads(json.dumps(asdict(reason)))) for reason in found) == found


def test_a_reason_that_an_older_release_kept_is_read() -> None:
    old: dict[str, Any] = {"code": "rank_too_large", "field": "r", "found": "rank 9", "allowed": "at most 8"}
    assert Reason.read(old) == Reason(**old)


@EACH_BAD
def test_every_refusal_has_a_sentence(name: str, folder: Path, geometry: BaseGeometry) -> None:
    BAD[name].change(folder)
    for reason in reasons(folder, geometry):
        assert reason.sentence or reason.code in SENTENCES, reason.code
        assert ", allowed " not in reason.message


def test_two_prefixes_have_a_sentence_of_their_own(folder: Path, geometry: BaseGeometry) -> None:
    BAD["two prefixes"].change(folder)
    (reason,) = reasons(folder, geometry)
    assert reason.message.startswith(
        "adapter_model.safetensors has names with the prefixes '' and 'base_model.model.'. Save it again"
    )


def test_a_refused_key_hides_nothing_of_the_tensors(folder: Path, geometry: BaseGeometry) -> None:
    config(use_dora=True, r=8)(folder)
    found = {reason.code: reason for reason in reasons(folder, geometry)}
    assert set(found) == {"unsupported_feature", "rank_mismatch"}
    pairs = len(load_file(folder / WEIGHTS)) // 2
    assert (found["rank_mismatch"].count, len(found["rank_mismatch"].examples)) == (pairs, 3)


@pytest.mark.parametrize("values", [{"r": 0}, {"rank_pattern": ["q_proj"]}])
def test_ranks_that_are_not_known_are_not_compared(
    folder: Path, geometry: BaseGeometry, values: dict[str, Any]
) -> None:
    config(**values)(folder)
    assert [reason.code for reason in reasons(folder, geometry)] == ["invalid_value"]


MLX = {"adapter_path": "adapters", "fine_tune_type": "lora", "lora_parameters": {"rank": 8}, "num_layers": 4}
OLD_MLX = {"lora_layers": 16, "lora_parameters": {"rank": 8, "alpha": 16.0}, "model": "some/base"}
MODEL = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "model_type": "llama"}
ADAPTER_HUB = {"config": {"architecture": "lora", "r": 8}, "hidden_size": 768, "model_class": "LlamaAdapterModel"}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (MLX, "not a PEFT adapter config; it looks like MLX-LM's"),
        (OLD_MLX, "not a PEFT adapter config; it looks like MLX-LM's"),
        (MODEL, "not a PEFT adapter config; it looks like a model's own config.json (LlamaForCausalLM)."),
        ({"model_type": "qwen2"}, "it looks like a model's own config.json (qwen2)."),
        ({"architectures": ["x\n{}"]}, "it looks like a model's own config.json. "),
        (ADAPTER_HUB, "it looks like AdapterHub's"),
        ({"tokenizer_class": "LlamaTokenizer"}, "it looks like a tokenizer's config"),
        ({"learning_rate": 1e-4, "global_step": 3}, "it looks like a trainer's settings"),
        ({}, "not a PEFT adapter config. Upload the folder"),
        ({"name": "value"}, "not a PEFT adapter config. Upload the folder"),
    ],
)
def test_a_config_that_is_not_peft_s_is_one_reason(
    folder: Path, geometry: BaseGeometry, found: dict[str, Any], words: str
) -> None:
    (folder / CONFIG).write_text(json.dumps(found))
    rename(folder, lambda name: name.replace(".lora_A.weight", ".lora_a").replace(".lora_B.weight", ".lora_b"))
    (reason,) = reasons(folder, geometry)
    assert reason.code == "not_peft_config"
    assert words in reason.message
    assert [one.code for one in precheck(folder / CONFIG, folder / WEIGHTS)] == ["not_peft_config"]


def test_peft_s_config_with_a_key_missing_is_still_peft_s(folder: Path, geometry: BaseGeometry) -> None:
    without("peft_type")(folder)
    assert [reason.code for reason in reasons(folder, geometry)] == ["unsupported_peft_type"]


NAMES_HOLD_THE_ADAPTER = (
    "The tensor names hold the adapter's name, such as `lora_A.default.weight`, as in a raw state dict. "
    "Save the adapter again with `model.save_pretrained(FOLDER)`, which omits it. "
)
MLX_NAMES = "The tensors have MLX-LM's names (lora_a, lora_b). Train the adapter with PEFT. "
WRAPPED = (
    "The tensor names hold a wrapper of the training loop (torch.compile, FSDP or DDP). Unwrap the model with "
    "`accelerator.unwrap_model(model)`, then save the adapter again with `model.save_pretrained(FOLDER)`. "
)
OTHER_MODULES = (
    "The tensors change modules that a Llama does not have, so the adapter was trained on another architecture. "
    "Train it on this server's base. "
)


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        (lambda n: n.replace(".weight", ".default.weight"), "tensor_name", NAMES_HOLD_THE_ADAPTER),
        (lambda n: n.replace(".weight", ".my_adapter.weight"), "tensor_name", NAMES_HOLD_THE_ADAPTER),
        (
            lambda n: n.replace(".lora_A.weight", ".lora_a").replace(".lora_B.weight", ".lora_b"),
            "tensor_name",
            MLX_NAMES,
        ),
        (lambda n: n.replace("base_model.model.", "base_model.model._orig_mod.", 1), "tensor_name", WRAPPED),
        (lambda n: f"module.{n}", "tensor_name", WRAPPED),
        (lambda n: n.replace("q_proj", "qkv_proj"), "tensor_name", OTHER_MODULES),
    ],
)
def test_names_of_another_kind_are_one_reason(
    tmp_path: Path, geometry: BaseGeometry, edit: Callable[[str], str], code: str, words: str
) -> None:
    folder = make_adapter(tmp_path, target_modules=["q_proj"])
    rename(folder, edit)
    reason = only(folder, geometry, code)
    assert reason.message.startswith(words)
    assert (reason.count, len(reason.examples)) == (2 * geometry.layers, 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("base_model.model.model.unembed_tokens.lora_A.weight", "unembed_tokens is Tinker's name for lm_head. Export"),
        ("base_model.model.model.embed_tokens.weight", "save_embedding_layers=False"),
        ("base_model.model.lm_head.weight", "save_embedding_layers=False"),
    ],
)
def test_embeddings_and_heads_get_the_way_out(folder: Path, geometry: BaseGeometry, name: str, words: str) -> None:
    save_file(load_file(folder / WEIGHTS) | {name: torch.ones(4, 4)}, folder / WEIGHTS)
    assert words in only(folder, geometry, "embedding_not_served").message


@pytest.mark.parametrize("every", [True, False])
def test_empty_tensors_are_one_reason(folder: Path, geometry: BaseGeometry, every: bool) -> None:
    rewrite(folder, lambda name, tensor: (name, torch.zeros(0) if every or "lora_A" in name else tensor))
    (reason,) = reasons(folder, geometry)
    assert reason.code == "empty_tensor"
    assert reason.count == len(load_file(folder / WEIGHTS)) // (1 if every else 2)
    assert reason.message.startswith(
        "The tensors are empty because the weights were not gathered before they were saved. With DeepSpeed ZeRO-3, "
        "set stage3_gather_16bit_weights_on_model_save to true, and save the adapter again. "
    )


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_16", "PiSSA", "olora", "corda"])
def test_a_base_changing_initialisation_names_its_conversion(folder: Path, geometry: BaseGeometry, init: str) -> None:
    config(init_lora_weights=init)(folder)
    assert "path_initial_model_for_weight_conversion" in only(folder, geometry, "unsupported_init").message


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("Qwen2ForCausalLM", "transformers.models.qwen2.modeling_qwen2"),
        ("MistralForCausalLM", None),
        ("Llama4ForCausalLM", "transformers.models.llama4.modeling_llama4"),
        ("Llama4ForConditionalGeneration", None),
        ("MllamaForConditionalGeneration", "transformers.models.mllama.modeling_mllama"),
        ("GPT2LMHeadModel", "transformers.models.gpt2.modeling_gpt2"),
        ("ChatGLMForConditionalGeneration", "transformers_modules.chatglm.modeling_chatglm"),
    ],
)
def test_another_architecture_is_refused(folder: Path, geometry: BaseGeometry, name: str, library: str | None) -> None:
    config(auto_mapping={"base_model_class": name, "parent_library": library, "unsloth_fixed": True})(folder)
    first = only(folder, geometry, "other_architecture").message
    assert f"trained for {name}, but this server's base is LlamaForCausalLM. Train it on this base" in first


@pytest.mark.parametrize(
    "mapping",
    [
        {"base_model_class": "LlamaForCausalLM", "parent_library": "transformers.models.llama.modeling_llama"},
        {"base_model_class": "LLaMAForCausalLM"},
        {"base_model_class": "LlamaForSequenceClassification"},
        {"base_model_class": "PeftModelForCausalLM", "parent_library": "peft.peft_model"},
        {"base_model_class": "OptimizedModule", "parent_library": "torch._dynamo.eval_frame"},
        {"base_model_class": "MyLlamaForCausalLM", "parent_library": "__main__"},
        {"base_model_class": "MyModel", "parent_library": "train"},
        {"base_model_class": None},
        {"base_model_class": ["Qwen2ForCausalLM"]},
        "Qwen2ForCausalLM",
        {},
        None,
    ],
)
def test_llamas_and_wrappers_are_no_other_architecture(folder: Path, geometry: BaseGeometry, mapping: object) -> None:
    config(auto_mapping=mapping)(folder)
    assert reasons(folder, geometry) == ()


def test_another_size_is_one_reason(folder: Path, geometry: BaseGeometry) -> None:
    config(base_model_name_or_path="meta-llama/Llama-2-7b-hf")(folder)
    rewrite(
        folder,
        lambda name, tensor: (
            name.replace("layers.1.", "layers.31."),
            torch.randn(4, 4096) if "lora_A" in name else torch.randn(4096, 4),
        ),
    )
    (reason,) = reasons(folder, geometry, base_name="tiny-llama")
    assert reason.code == "wrong_base"
    assert reason.message == (
        "The adapter was trained for meta-llama/Llama-2-7b-hf (hidden 4096), but this server serves tiny-llama "
        "(hidden 64). Train it on this base, or upload it to a server of the other base."
    )


def test_the_same_width_with_another_inside_is_one_reason_too(good_adapter: Path, geometry: BaseGeometry) -> None:
    dims = {**geometry.dims, "gate_proj": (64, 256), "up_proj": (64, 256), "down_proj": (256, 64)}
    (reason,) = reasons(good_adapter, replace(geometry, dims=dims, layers=2), base_name="other")
    assert reason.code == "wrong_base"
    assert "(hidden 64, gate_proj 64 to 112)" in reason.message
    assert "this server serves other (hidden 64, gate_proj 64 to 256)" in reason.message


def test_one_misfit_among_others_is_no_other_base(folder: Path, geometry: BaseGeometry) -> None:
    BAD["shape smaller than the base's, inputs"].change(folder)
    assert [reason.code for reason in reasons(folder, geometry)] == ["shape_mismatch"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (b"GGUF\x03\0\0\0" + bytes(40), "GGUF"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"<html><body>404</body></html>", "web page"),
        (b"\x1f\x8b\x08\0" + bytes(40), "gzip"),
    ],
)
def test_other_files_in_the_place_of_weights(folder: Path, geometry: BaseGeometry, raw: bytes, words: str) -> None:
    (folder / WEIGHTS).write_bytes(raw)
    (reason,) = reasons(folder, geometry)
    assert words in reason.message


def test_a_local_check_leaves_server_settings_to_the_server(folder: Path, geometry: BaseGeometry) -> None:
    assert precheck(folder / CONFIG, folder / WEIGHTS) == ()
    config(r=1024, use_dora=True)(folder)
    assert [reason.code for reason in precheck(folder / CONFIG, folder / WEIGHTS)] == [
        "unsupported_feature",
        "rank_mismatch",
    ]
    assert "rank_too_large" in [reason.code for reason in reasons(folder, geometry)]


def test_a_config_is_checked_by_itself_in_a_child(folder: Path) -> None:
    limits = {"cpu_seconds": 30, "address_bytes": 512 * 2**20}
    assert inspect_in_child(folder / CONFIG, **limits) == ()
    config(use_dora=True, init_lora_weights="pissa")(folder)
    found = inspect_in_child(folder / CONFIG, **limits)
    assert [reason.code for reason in found] == ["unsupported_init", "unsupported_feature"]
    assert str(AdapterRejected(found)) == " ".join(reason.message for reason in found)


@pytest.mark.parametrize(
    ("trained_on", "names", "same"),
    [
        ("meta-llama/Llama-3.1-8B", ["Llama-3.1-8B"], True),
        ("META-LLAMA/llama-3.1-8b", ["meta-llama/Llama-3.1-8B"], True),
        ("/home/u/models/Llama-3.1-8B/", ["Llama-3.1-8B"], True),
        ("C:\\models\\Llama-3.1-8B", ["llama", "/srv/Llama-3.1-8B"], True),
        ("/c/hub/models--meta-llama--Llama-3.1-8B/snapshots/0123abcd", ["Llama-3.1-8B"], True),
        ("models--gpt2/snapshots/0123abcd/", ["gpt2"], True),
        ("Llama_3.1_8B", ["Llama-3.1-8B"], True),
        ("meta-llama/Llama-3.1-8B-Instruct", ["Llama-3.1-8B"], False),
        ("meta-llama/Llama-3.2-1B", ["Llama-3.1-8B", "base"], False),
    ],
)
def test_names_of_one_base(trained_on: str, names: list[str], same: bool) -> None:
    assert same_base(trained_on, names) is same
