"""Plan of a base: files and config give equal weight bytes; unsupported features are refused by name."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from adapters.errors import UnsupportedBase
from app.planning.base import PlannedBase, Stored, check_split, plan_base, weight_bytes
from app.planning.machine import UnreadableBase, read_base
from tests.support.base_configs import LARGE, TOY


def saved(folder, **changes):
    config = LlamaConfig(**TOY | changes)
    with torch.device("cpu"):
        LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder, max_shard_size="1MB")
    return folder


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("biases", [{}, {"attention_bias": True, "mlp_bias": True}])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_files_and_config_say_the_same(tmp_path, tied, biases, dtype):
    saved(tmp_path, tie_word_embeddings=tied, **biases)
    with_files = read_base(tmp_path, engine_dtype=dtype)
    by_config = read_base(tmp_path / "config.json", engine_dtype=dtype)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1, "the shards and their index are read"
    for devices in (1, 2, 4):
        assert weight_bytes(with_files, devices) == weight_bytes(by_config, devices)


def test_llama_3_8b_by_arithmetic():
    # 8,030,261,248 parameters (model card) of 2 bytes each; the vocabulary needs no padding.
    assert weight_bytes(plan_base(LARGE)) == 2 * 8_030_261_248


def test_a_tied_head_takes_nothing():
    tied = plan_base(TOY | {"tie_word_embeddings": True})
    assert weight_bytes(plan_base(TOY)) - weight_bytes(tied) == 1024 * 128 * 2


def test_quantised_weights_count_as_they_are_stored():
    stored = (
        Stored("model.layers.0.mlp.up_proj.qweight", (16, 32), "I32", 2048),
        Stored("model.layers.0.mlp.up_proj.scales", (8,), "F16", 16),
        Stored("model.norm.weight", (128,), "F32", 512),
    )
    assert weight_bytes(plan_base(TOY, stored=stored)) == 2048 + 16 + 256


def test_every_device_keeps_norms_and_its_share_of_the_rest():
    whole, half = (weight_bytes(plan_base(TOY), devices) for devices in (1, 2))
    norms = (2 * 4 + 1) * 128 * 2
    assert half - norms == (whole - norms) / 2


@pytest.mark.parametrize(
    ("change", "devices", "named"),
    [
        ({}, 3, "num_attention_heads"),
        ({"num_attention_heads": 12, "num_key_value_heads": 4, "hidden_size": 192}, 6, "num_key_value_heads"),
        ({"intermediate_size": 258}, 4, "intermediate_size"),
    ],
)
def test_a_base_that_cannot_be_split_is_refused(change, devices, named):
    with pytest.raises(UnsupportedBase, match=named):
        check_split(plan_base(TOY | change), devices)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_one_that_can_be_is_not(devices):
    assert check_split(plan_base(TOY), devices) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("tie_word_embeddings", "yes"), ("attention_bias", 1), ("max_position_embeddings", 0), ("hidden_size", None)],
)
def test_a_bad_field_is_named(field, value):
    with pytest.raises(UnsupportedBase, match=field):
        plan_base(TOY | {field: value})


def test_what_is_no_base_is_named(tmp_path):
    with pytest.raises(UnreadableBase, match=r"There is no file .*nothing.* Give a model's folder"):
        read_base(tmp_path / "nothing")
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(UnreadableBase, match=r"config\.json does not hold a JSON object"):
        read_base(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UnreadableBase, match=r"config\.json does not hold a JSON object"):
        read_base(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 8, b"\x02\x00\x00\x00\x00\x00\x00\x00[]", b"\x0e\x00\x00\x00\x00\x00\x00\x00" + b'{"x": {"a":1}}'],
)
def test_weights_that_are_no_safetensors_are_named(tmp_path, content):
    (tmp_path / "config.json").write_text(json.dumps(TOY))
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UnreadableBase, match=r"model.safetensors is missing or is not a safetensors file"):
        read_base(tmp_path)


def test_a_second_copy_beside_the_shards_is_not_counted(tmp_path):
    saved(tmp_path)
    before = read_base(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(b"anything")
    assert isinstance(before, PlannedBase)
    assert weight_bytes(read_base(tmp_path)) == weight_bytes(before)
