from typing import Any

import pytest
from transformers import LlamaConfig

from adapters.errors import UnsupportedBase
from adapters.geometry import LINEAR_MODULES, BaseGeometry, read_geometry
from tests.support.peft_adapters import TINY_LLAMA, tiny_llama

LLAMA = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"} | TINY_LLAMA


def test_agrees_with_the_modules_that_transformers_makes(geometry: BaseGeometry) -> None:
    model = tiny_llama()
    layer = model.model.layers[0]
    made = {
        name: getattr(layer.mlp if name in ("gate_proj", "up_proj", "down_proj") else layer.self_attn, name)
        for name in LINEAR_MODULES
    }
    assert geometry.dims == {name: (linear.in_features, linear.out_features) for name, linear in made.items()}
    assert geometry.layers == len(model.model.layers)
    assert (geometry.vocab, geometry.hidden) == tuple(model.model.embed_tokens.weight.shape)


def test_reads_what_transformers_writes() -> None:
    config = LlamaConfig(**TINY_LLAMA, architectures=["LlamaForCausalLM"], dtype="float16")
    assert read_geometry(config.to_dict()).dtype == "float16"


def test_defaults_are_those_of_llama() -> None:
    config = {key: value for key, value in LLAMA.items() if key not in ("head_dim", "num_key_value_heads")}
    dims = read_geometry(config).dims
    assert dims["q_proj"] == dims["k_proj"] == dims["v_proj"] == dims["o_proj"] == (64, 64)


def test_llama_3_8b() -> None:
    dims = read_geometry(
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "torch_dtype": "bfloat16",
            "vocab_size": 128256,
        }
    ).dims
    assert dims["k_proj"] == (4096, 1024)
    assert dims["o_proj"] == (4096, 4096)
    assert dims["gate_proj"] == (4096, 14336)
    assert dims["down_proj"] == (14336, 4096)


@pytest.mark.parametrize(
    ("config", "engine_dtype", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, "auto", "bfloat16"),
        ({"torch_dtype": None, "dtype": "float16"}, "auto", "float16"),
        ({"torch_dtype": "float32"}, "auto", "float16"),
        ({"torch_dtype": None}, "auto", "float16"),
        ({"torch_dtype": "float32"}, "float32", "float32"),
        ({"torch_dtype": "bfloat16"}, "half", "float16"),
    ],
)
def test_dtype_is_the_one_that_the_engine_computes_in(config: dict[str, Any], engine_dtype: str, dtype: str) -> None:
    assert read_geometry(LLAMA | config, engine_dtype=engine_dtype).dtype == dtype


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "architectures"),
        ({"architectures": None}, "architectures"),
        ({"architectures": [["LlamaForCausalLM"]]}, "architectures"),
        ({"architectures": ["LlamaForCausalLM", "LlamaForCausalLM"]}, "architectures"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"intermediate_size": 0}, "intermediate_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": None, "num_attention_heads": 6, "num_key_value_heads": 6}, "head_dim"),
        ({"vocab_size": 2.5}, "vocab_size"),
        ({"torch_dtype": "int8"}, "torch_dtype"),
    ],
)
def test_any_other_base_is_refused_by_the_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(UnsupportedBase) as raised:
        read_geometry(LLAMA | change)
    assert raised.value.field == field
    assert repr(change[field]) == raised.value.found


def test_an_unknown_engine_dtype_is_refused() -> None:
    with pytest.raises(UnsupportedBase, match="engine dtype is 'int4'"):
        read_geometry(LLAMA, engine_dtype="int4")
