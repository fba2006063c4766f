"""The gateway's tokenizer: equal to the one that transformers loads for vLLM from the same files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
from transformers import AutoTokenizer, LlamaConfig

from app.demo.corpus import load_corpus
from app.demo.models import make_tokenizer
from app.demo.recipe import Recipe
from app.services.prompts.tokenizer import BaseTokenizer, load_tokenizer, special_tokens

_FLAGS = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
_DECODER = {
    "0": {"content": "<unk>", **_FLAGS},
    "1": {"content": "<s>", **_FLAGS},
    "2": {"content": "</s>", **_FLAGS},
    "900": {"content": "<|x|>", **_FLAGS, "rstrip": True},
}
#: Contents of tokenizer_config.json, as Llama bases have them.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True, "add_eos_token": True},
    "llama-legacy": {
        "tokenizer_class": "LlamaTokenizerFast",
        "legacy": True,
        "bos_token": {"__type": "AddedToken", "content": "<s>"} | _FLAGS,
    },
    "llama-no-prefix": {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False},
    "llama-added": {
        "tokenizer_class": "LlamaTokenizer",
        "added_tokens_decoder": _DECODER,
        "additional_special_tokens": ["<|x|>"],
        "pad_token": "</s>",
        "image_token": "<|x|>",
    },
    "fast": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "extra_special_tokens": ["<|x|>"]},
    "named": {"extra_special_tokens": {"x_token": "<|x|>"}, "eos_token": "</s>"},
    "bare": {},
}
_PIECES = [
    "Hello",
    " world",
    "  ",
    "\n",
    "<s>",
    "</s>",
    "[INST]",
    " [/INST] ",
    "<unk>",
    "▁",
    "<|x|>",
    " ",
    "é",
    "漢",
    "🍋",
]
TEXTS = st.lists(st.sampled_from(_PIECES) | st.text(max_size=8), min_size=1, max_size=8).map("".join)


def sentencepiece_style() -> Tokenizer:
    """Train a tokenizer like Llama 2's: BPE with a fallback to bytes, and a prefix of each text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["Hello world, a small parcel [INST] is here"] * 50, trainer)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def save_base(folder: Path, config: Mapping[str, Any]) -> Path:
    stored = json.loads(sentencepiece_style().to_str())
    stored["added_tokens"] = [token for token in stored["added_tokens"] if not token["content"].startswith("<0x")]
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    bases = {name: save_base(folder / name, config) for name, config in CONFIGS.items()}
    make_tokenizer(load_corpus(), Recipe()).save_pretrained(folder / "demo")
    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(folder / "demo")
    return bases | {"demo": folder / "demo"}


@pytest.fixture(scope="module")
def pairs(bases: dict[str, Path]) -> dict[str, tuple[BaseTokenizer, Any]]:
    """Our tokenizer and transformers' of each base."""
    return {name: (_loaded(base), AutoTokenizer.from_pretrained(base)) for name, base in bases.items()}


def _loaded(base: Path) -> BaseTokenizer:
    tokenizer = load_tokenizer(base)
    assert tokenizer is not None
    return tokenizer


@settings(max_examples=300)
@given(text=TEXTS)
def test_texts_have_the_tokens_of_transformers(pairs: dict[str, tuple[BaseTokenizer, Any]], text: str) -> None:
    for name, (ours, theirs) in pairs.items():
        for special in (True, False):
            expected = tuple(theirs(text, add_special_tokens=special).input_ids)
            assert ours.encode(text, special=special) == expected, name


@pytest.mark.parametrize("name", [*CONFIGS, "demo"])
def test_tokens_and_special_tokens_are_those_of_transformers(
    bases: dict[str, Path], pairs: dict[str, tuple[BaseTokenizer, Any]], name: str
) -> None:
    ours, theirs = pairs[name]
    token_ids = sorted(theirs.get_vocab().values())
    assert ours.texts(token_ids) == [theirs.decode([token_id]) for token_id in token_ids]
    assert ours.special_ids == set(theirs.all_special_ids)
    assert ours.longest_token == max(map(len, theirs.get_vocab()))
    assert special_tokens(bases[name]).texts == theirs.special_tokens_map


def test_old_files_name_special_tokens_apart(tmp_path: Path) -> None:
    base = save_base(tmp_path / "old", {"bos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"})
    (base / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<s>"} | _FLAGS}))
    assert special_tokens(base).texts == AutoTokenizer.from_pretrained(base).special_tokens_map == {"bos_token": "<s>"}


@pytest.mark.parametrize("config", [{"tokenizer_class": "GPT2Tokenizer"}, {"auto_map": {"AutoTokenizer": "a.B"}}])
def test_a_tokenizer_of_another_class_is_not_guessed(tmp_path: Path, config: dict[str, Any]) -> None:
    assert load_tokenizer(save_base(tmp_path / "other", config)) is None


def test_a_base_may_have_no_tokenizer_file(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path) is None
    assert special_tokens(tmp_path).texts == {}
