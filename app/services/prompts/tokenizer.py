"""Tokenizer of the base: its ``tokenizer.json`` on the library ``tokenizers``, equal to what vLLM loads.

vLLM loads tokenizers with transformers, which a gateway does not import. Of a Llama's two kinds of tokenizers,
transformers takes one from ``tokenizer.json`` unchanged. For the class ``LlamaTokenizer`` it takes the vocabulary, and
builds the rest itself. A base with any other class, or without the file, has no tokenizer here.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_log = logging.getLogger(__name__)

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LLAMA = "LlamaTokenizer"
#: Tokenizer classes, without the suffix ``Fast``, that take ``tokenizer.json`` unchanged.
_UNCHANGED = frozenset({"", "PreTrainedTokenizer", "TokenizersBackend"})
_LLAMA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


class BaseTokenizer:
    """Encoder and decoder. Safe for concurrent threads, as nothing changes after the start.

    Attributes:
        special_ids: ids of the special tokens (BOS, EOS, ...).
        longest_token: characters of the longest token.
    """

    def __init__(self, tokenizer: Tokenizer, special_ids: frozenset[int]) -> None:
        self._tokenizer, self.special_ids = tokenizer, special_ids
        self.longest_token = max(map(len, tokenizer.get_vocab()))

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Encode a text. The names of special tokens in it become these tokens, as in vLLM.

        Args:
            special: whether to add the tokens that begin a text, such as BOS.
        """
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Decode tokens to one text, special tokens included."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def unknown(self, token_ids: Iterable[int]) -> int | None:
        """Return the first id that is no token; None if all are."""
        return next((token_id for token_id in token_ids if self._tokenizer.id_to_token(token_id) is None), None)

    def texts(self, token_ids: Iterable[int]) -> list[str]:
        """Decode each token by itself, as vLLM's logprobs show it."""
        return [self._tokenizer.decode([token_id], skip_special_tokens=False) for token_id in token_ids]


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Special tokens of a base.

    Attributes:
        named: by the names that chat templates use, such as ``bos_token``.
        others: those without a name.
    """

    named: dict[str, AddedToken]
    others: tuple[AddedToken, ...]

    @property
    def texts(self) -> dict[str, str]:
        """Texts of the named tokens."""
        return {name: token.content for name, token in self.named.items()}

    def __iter__(self) -> Iterator[AddedToken]:
        return iter((*self.named.values(), *self.others))


def special_tokens(base: Path) -> SpecialTokens:
    """Read the special tokens of the base's tokenizer, as transformers does. Blocks."""
    config = _json(base / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= _json(base / "special_tokens_map.json")
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if isinstance(extra, dict):
        config, extra = config | extra, []
    if _class(base, config) == _LLAMA:
        config = _LLAMA_TOKENS | config
    own = (name for name in config if name.endswith("_token") and name not in _NAMES)
    named = {name: config.get(name) for name in _NAMES} | {
        name: config[name] for name in own if isinstance(config[name], str)
    }
    return SpecialTokens({name: _added(token) for name, token in named.items() if token}, tuple(map(_added, extra)))


def load_tokenizer(base: Path) -> BaseTokenizer | None:
    """Load the base's tokenizer; None if it cannot be made equal to vLLM's. Blocks."""
    config, file = _json(base / "tokenizer_config.json"), base / "tokenizer.json"
    kind = _class(base, config)
    if not file.is_file() or "auto_map" in config or kind not in {*_UNCHANGED, _LLAMA}:
        _log.warning("The base has no tokenizer.json of a known class. Limits count an upper estimate of its prompts.")
        return None
    tokenizer = Tokenizer.from_file(str(file))
    stored = _json(file)
    if kind == _LLAMA:
        tokenizer = _llama(stored, config, tokenizer)
    added = config.get("added_tokens_decoder") or {item["id"]: item for item in stored["added_tokens"]}
    tokenizer.add_tokens([_added(added[index]) for index in sorted(added, key=int)])
    special, added_texts = (
        list(special_tokens(base)),
        {token.content for token in tokenizer.get_added_tokens_decoder().values()},
    )
    # Adding a known token again would change how it strips the spaces around it.
    tokenizer.add_special_tokens([token for token in special if token.content not in added_texts])
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = (tokenizer.token_to_id(token.content) for token in special)
    return BaseTokenizer(tokenizer, frozenset(token_id for token_id in ids if token_id is not None))


def _llama(stored: dict[str, Any], config: dict[str, Any], unchanged: Tokenizer) -> Tokenizer:
    """Build what transformers' ``LlamaTokenizer`` makes of a ``tokenizer.json``."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in stored["model"]["merges"])
    merges = [(left, right) for left, right in pairs]
    model = models.BPE(vocab=stored["model"]["vocab"], merges=merges, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    prefix = config.get("add_prefix_space") is not False
    scheme = ("always" if config.get("legacy") else "first") if prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    steps: Sequence[Any] = (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse())
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else [*steps])
    if unchanged.post_processor is not None:
        tokenizer.post_processor = unchanged.post_processor
    return tokenizer


def _class(base: Path, config: dict[str, Any]) -> str:
    """Return the name of the tokenizer's class without the suffix ``Fast``; "" if the base names none."""
    name = config.get("tokenizer_class") or _json(base / "config.json").get("tokenizer_class") or ""
    return str(name).removesuffix("Fast")


def _added(token: str | dict[str, Any]) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, special=True, normalized=False)
    return AddedToken(**{name: value for name, value in token.items() if name not in ("id", "__type")})


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
