"""Random base of a given shape, loaded by transformers."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from app.lab.bench import big_base

VOCABULARY = 300


def _write(folder, **shape):
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    big_base.write_base(folder, config, **shape)
    return folder


def test_transformers_loads_every_tensor_and_answers(tmp_path):
    folder = _write(tmp_path / "base")
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    prompt = torch.arange(10).unsqueeze(0)
    answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=5, do_sample=False)
    assert answer.shape[1] > 10


def test_layers_are_files_of_their_own_and_the_seed_settles_them(tmp_path):
    first, again, other = (_write(tmp_path / str(n), seed=seed) for n, seed in enumerate((1, 1, 2)))
    files = sorted(path.name for path in first.glob("*.safetensors"))
    assert files == [f"model-0000{n}-of-00004.safetensors" for n in (1, 2, 3, 4)]
    assert [(first / name).read_bytes() == (again / name).read_bytes() for name in files] == [True] * 4
    assert [(first / name).read_bytes() == (other / name).read_bytes() for name in files] == [False] * 4


def test_every_token_has_a_text(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(_write(tmp_path / "base"))
    assert len(tokenizer) == VOCABULARY
    assert all(tokenizer.decode([number]) for number in range(VOCABULARY))
    text = "What does ñ cost?"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_eight_b_shape_is_eight_billion_parameters():
    config = big_base.eight_b_config()
    shapes = [shape for shard in big_base._shards(config) for shape in shard.values()]
    # Parameter count of Llama 3.1 8B.
    assert sum(torch.Size(shape).numel() for shape in shapes) == 8_030_261_248
