"""Tokenizer with one token for each word or sign, for tests without a base."""

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from app.services.prompts.tokenizer import BaseTokenizer

BOS = 0
_WORDS = ("<s>", "?", "hi", "Be", "brief", "Sweet", "What", "is", "salt", "two", "euros", "<", ">", "So")


def word_tokenizer() -> BaseTokenizer:
    """Build the tokenizer. Unknown words are the token of ``?``."""
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(_WORDS)}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return BaseTokenizer(words, frozenset({BOS}))
