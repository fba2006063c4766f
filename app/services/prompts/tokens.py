"""Tokens of requests: encode their prompts, refuse those beyond the context, and bound what a request can use."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from adapters.fair_semaphore import FairSemaphore, QueueFull
from app.domain.errors import Busy, ContextLengthExceeded, InvalidRequest, UnsupportedField
from app.domain.limits.limits import TokenBound
from app.engine.port import Endpoint, EngineRequest
from app.services.prompts.tokenizer import BaseTokenizer

#: vLLM's default of ``max_tokens`` for completions. A chat's default is what fits.
COMPLETION_TOKENS = 16

#: Longer texts are encoded in a thread. The library releases the GIL, and a shorter text takes less than the hop.
_INLINE_CHARS = 2_000
#: Long texts that are encoded at the same time, and seconds that one waits for its turn. LoRAX' ``truncate`` allows
#: texts of the size of a body, which take seconds.
_AT_ONCE, _PATIENCE_S = 2, 10.0
_RETRY_AFTER_S = 2
#: Tokens that a tokenizer may add to the bytes of a text: BOS, EOS and a prefix.
_ADDED_TOKENS = 3
_NO_TOKENIZER = (
    "The gateway cannot load the tokenizer of this base, so only the engine counts its tokens. "
    "Read the usage of an answer instead."
)

Result = TypeVar("Result")


class PromptTokens:
    """Tokens of requests to one base.

    Tenants take turns with long texts, so a tenant that sends many only delays itself.

    Args:
        tokenizer: the base's tokenizer; None if the engine tokenizes texts.

    Attributes:
        context: maximum tokens of a sequence, prompt and answer together.
    """

    def __init__(self, tokenizer: BaseTokenizer | None, *, context: int) -> None:
        self._tokenizer, self.context = tokenizer, context
        self._semaphore = FairSemaphore(_AT_ONCE)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the base's special tokens (BOS, EOS, ...); empty without a tokenizer."""
        return self._tokenizer.special_ids if self._tokenizer else frozenset()

    def texts(self, token_ids: Sequence[int]) -> list[str]:
        """Decode each token by itself, in order. Without a tokenizer, a token's text is ``token_id:`` and its id."""
        if self._tokenizer is None:
            return [f"token_id:{token_id}" for token_id in token_ids]
        return self._tokenizer.texts(token_ids)

    async def tokenized(self, request: EngineRequest) -> EngineRequest:
        """Add the tokens of its prompts to a request. Without a tokenizer, texts stay texts.

        Raises:
            ContextLengthExceeded: a prompt leaves no room for an answer.
            InvalidRequest: the answer may be longer than the context.
            Busy: too many long prompts are waiting.
        """
        self._check_answer(request.body)
        prompts = _prompts(request)
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if not texts:
            encoded = [tuple(prompt) for prompt in prompts if not isinstance(prompt, str)]
        elif self._tokenizer is None:
            return request
        else:
            encoded = await self._encoded(texts, request, self._tokenizer)
        kept = request.body.get("truncate_prompt_tokens")
        if kept is not None:
            encoded = [ids[-kept:] for ids in encoded]
        # vLLM names the field of a truncation beyond the context.
        if kept is None or kept <= self.context:
            self._check(max(map(len, encoded)), request)
        # vLLM refuses a prompt without tokens in words about its text.
        return replace(request, token_ids=tuple(encoded)) if all(encoded) else request

    def most(self, request: EngineRequest) -> TokenBound:
        """Return an upper bound of the tokens that a request can use."""
        if request.token_ids is not None:
            counts = [len(ids) for ids in request.token_ids]
        else:
            kept = request.body.get("truncate_prompt_tokens", self.context)
            counts = [min(_most_tokens(prompt), kept, self.context) for prompt in _prompts(request)]
        default = COMPLETION_TOKENS if request.endpoint is Endpoint.COMPLETIONS else None
        return TokenBound(sum(counts), most_output(request.body, counts, default=default, longest=self.context))

    async def _encoded(
        self, texts: list[str], request: EngineRequest, tokenizer: BaseTokenizer
    ) -> list[tuple[int, ...]]:
        longest, special = max(map(len, texts)), request.endpoint is Endpoint.COMPLETIONS
        if "truncate_prompt_tokens" not in request.body and longest > self.context * tokenizer.longest_token:
            raise self._refusal(
                request,
                f"{longest} characters (more than {self.context * tokenizer.longest_token} characters, which is the "
                f"upper bound for {self.context} input tokens)",
            )

        def encode() -> list[tuple[int, ...]]:
            return [tokenizer.encode(text, special=special) for text in texts]

        return await self._in_turn(encode, sum(map(len, texts)), request.tenant)

    async def encode(self, text: str, *, special: bool, tenant: str) -> tuple[int, ...]:
        """Encode a text of any length.

        Args:
            special: whether to add the tokens that begin a text, such as BOS.
            tenant: slug of the tenant whose turn it is.

        Raises:
            UnsupportedField: the gateway cannot load the base's tokenizer.
            Busy: too many long texts are waiting.
        """
        tokenizer = self._loaded()
        return await self._in_turn(lambda: tokenizer.encode(text, special=special), len(text), tenant)

    async def decode(self, token_ids: Sequence[int], *, tenant: str) -> str:
        """Decode tokens to one text, special tokens included.

        Raises:
            InvalidRequest: an id is no token of the base.
            UnsupportedField, Busy: as in :meth:`encode`.
        """
        tokenizer = self._loaded()

        def decode() -> str:
            if (unknown := tokenizer.unknown(token_ids)) is not None:
                raise InvalidRequest(
                    f"tokens has {unknown}; each item must be the id of a token of the base.", param="tokens"
                )
            return tokenizer.decode(token_ids)

        return await self._in_turn(decode, len(token_ids), tenant)

    async def text_of_each(self, token_ids: Sequence[int], *, tenant: str) -> list[str]:
        """Decode each of many tokens by itself, in order.

        Raises:
            UnsupportedField, Busy: as in :meth:`encode`.
        """
        tokenizer = self._loaded()
        return await self._in_turn(lambda: tokenizer.texts(token_ids), len(token_ids), tenant)

    def _loaded(self) -> BaseTokenizer:
        if self._tokenizer is None:
            raise UnsupportedField(_NO_TOKENIZER, param="model")
        return self._tokenizer

    async def _in_turn(self, work: Callable[[], Result], size: int, tenant: str) -> Result:
        """Run work on long texts in a thread, in the tenant's turn."""
        if size <= _INLINE_CHARS:
            return work()
        try:
            async with self._semaphore.permit(tenant, patience_s=_PATIENCE_S):
                return await asyncio.to_thread(work)
        except QueueFull:
            message = "Too many long prompts are waiting to be tokenized. Try again later."
            raise Busy(message, retry_after=_RETRY_AFTER_S) from None

    def _check_answer(self, body: dict[str, Any]) -> None:
        for field in ("max_completion_tokens", "max_tokens"):
            if (body.get(field) or 0) > self.context:
                raise InvalidRequest(
                    f"{field} is {body[field]}, but the context of the base has {self.context} tokens for prompt and "
                    f"answer together. Use a smaller {field}.",
                    param=field,
                )

    def _check(self, tokens: int, request: EngineRequest) -> None:
        if tokens == self.context:
            raise self._refusal(request, f"{tokens} input tokens, which leaves no room for an answer")
        if tokens > self.context:
            text = f"{tokens} input tokens, which exceeds this limit even without any output tokens"
            raise self._refusal(request, text)

    def _refusal(self, request: EngineRequest, contents: str) -> ContextLengthExceeded:
        """Build the refusal of a prompt in the words of vLLM."""
        return ContextLengthExceeded(
            f"This model's maximum context length is {self.context} tokens. However, your prompt contains {contents}. "
            "Please reduce the length of the input prompt.",
            param="messages" if request.endpoint is Endpoint.CHAT else "prompt",
        )


def most_output(body: dict[str, Any], counts: list[int], *, default: int | None, longest: int) -> int:
    """Return the maximum tokens of all sequences of a body together.

    Args:
        counts: tokens of each prompt.
        default: maximum of a sequence if the body states none; None: as many tokens as fit.
        longest: maximum tokens of a prompt and its sequence together.
    """
    max_tokens = body.get("max_completion_tokens") or body.get("max_tokens", default)
    rooms = [max(0, longest - count) for count in counts]
    return int(body.get("n") or 1) * sum(room if max_tokens is None else min(max_tokens, room) for room in rooms)


def _prompts(request: EngineRequest) -> Sequence[str | list[int]]:
    """Return the prompts of a request: texts, or lists of token ids."""
    if request.prompt is not None:
        return [request.prompt]
    prompt = request.body["prompt"]
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt


def _most_tokens(prompt: str | list[int]) -> int:
    """Return an upper bound of a prompt's tokens: a token of a Llama stands for at least one byte."""
    return len(prompt.encode()) + _ADDED_TOKENS if isinstance(prompt, str) else len(prompt)
