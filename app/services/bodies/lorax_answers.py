"""LoRAX answers, translated from completions: whole answers, and streams of one event per token."""

import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

from app.domain.errors import EngineUnavailable
from app.engine.port import EventStream
from app.services.bodies.lorax import Generation

#: Decodes each token by itself, in order.
TokenTexts = Callable[[Sequence[int]], list[str]]

_PLACEHOLDER = "token_id:"
_PREFIX = "data: "
_DONE = "[DONE]"

# Keyed by OpenAI's error type. lorax-client knows these words (its errors.py).
_ERROR_TYPES = {"invalid_request_error": "validation", "service_unavailable_error": "overloaded"}
_INCOMPLETE = {"error": "The generation ended before it was complete.", "error_type": "incomplete_generation"}


def whole(
    generation: Generation, answer: dict[str, Any], *, special: frozenset[int], texts: TokenTexts
) -> dict[str, Any]:
    """Build LoRAX's ``GenerateResponse``: ``{"generated_text", "details"?}``.

    With ``best_of``, the sequence with the highest mean log probability is the answer. The others go to
    ``details.best_of_sequences``.

    Raises:
        EngineUnavailable: the engine stopped before the text was complete.
    """
    choices = sorted(answer["choices"], key=_mean_logprob, reverse=True)
    if any(finish_reason(choice) is None for choice in choices):
        raise EngineUnavailable("The engine stopped while it answered. Try again later.", retry_after=1)
    response: dict[str, Any] = {"generated_text": generation.prefix + choices[0]["text"]}
    if not generation.details:
        return response
    texts_by_id = _lookup(generation, choices, texts)
    details, *others = [_details(generation, choice, texts_by_id, special) for choice in choices]
    response["details"] = {**details, "prompt_tokens": len(choices[0]["prompt_token_ids"])}
    if others:
        response["details"]["best_of_sequences"] = [
            {"generated_text": generation.prefix + choice["text"], **other}
            for choice, other in zip(choices[1:], others, strict=True)
        ]
    return response


class LoraxEvents:
    """LoRAX's server-sent events (``data:{...}``), translated from the engine's events.

    The engine may merge several tokens into one event; each of them gets a separate LoRAX event. The last event carries
    the whole text and the details. An error in mid-stream becomes an event in LoRAX's error shape.
    """

    def __init__(
        self, generation: Generation, source: EventStream[str], *, special: frozenset[int], texts: TokenTexts
    ) -> None:
        self._generation, self._source, self._special, self._texts = generation, source, special, texts
        self._pending: deque[str] = deque()
        self._generated = ""
        self._prompt_tokens = 0
        self._tokens = 0
        self._complete = False
        self._exhausted = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while not self._pending:
            if self._exhausted:
                raise StopAsyncIteration
            await self._read()
        return self._pending.popleft()

    async def aclose(self) -> None:
        self._exhausted = True
        self._pending.clear()
        await self._source.aclose()

    async def _read(self) -> None:
        """Translate the engine's next event. The source must be read to its end, which releases the adapter."""
        event = await anext(self._source, None)
        if event is None:
            self._exhausted = True
            self._fail(_INCOMPLETE)
            return
        data = event.removeprefix(_PREFIX).strip()
        if self._complete or data == _DONE:
            return
        chunk = json.loads(data)
        if "error" in chunk:
            self._fail(error_body(chunk["error"]))
            return
        for choice in chunk["choices"]:
            self._add(choice)

    def _add(self, choice: dict[str, Any]) -> None:
        self._prompt_tokens = self._prompt_tokens or len(choice.get("prompt_token_ids") or ())
        texts = _lookup(self._generation, [choice], self._texts)
        tokens = tokens_of(choice, texts, self._special, alternatives=self._generation.alternatives)
        share_text(tokens, choice["text"])
        self._tokens += len(tokens)
        self._generated += choice["text"]
        responses: list[dict[str, Any]] = [
            {"token": token, "generated_text": None, "details": None} for token in tokens
        ]
        reason = finish_reason(choice)
        if reason and responses:
            self._complete = True
            responses[-1]["generated_text"] = self._generation.prefix + self._generated
            responses[-1]["details"] = self._details(reason) if self._generation.details else None
        self._pending.extend(_event(response) for response in responses)

    def _details(self, reason: str) -> dict[str, Any]:
        return {
            "finish_reason": reason,
            "prompt_tokens": self._prompt_tokens,
            "generated_tokens": self._tokens,
            "seed": self._generation.seed,
        }

    def _fail(self, error: dict[str, Any]) -> None:
        if not self._complete:
            self._complete = True
            self._pending.append(_event(error))


def _event(value: dict[str, Any]) -> str:
    return f"data:{json.dumps(value)}\n\n"


def error_body(error: dict[str, Any]) -> dict[str, str]:
    """Translate an error from OpenAI's envelope to LoRAX's."""
    return {"error": str(error.get("message")), "error_type": _ERROR_TYPES.get(str(error.get("type")), "generation")}


def finish_reason(choice: dict[str, Any]) -> str | None:
    """Return LoRAX's finish reason, or None if the engine stopped early."""
    match choice.get("finish_reason"):
        case "length":
            return "length"
        case "stop":
            return "stop_sequence" if isinstance(choice.get("stop_reason"), str) else "eos_token"
    return None


def tokens_of(
    choice: dict[str, Any], texts: dict[int, str], special: frozenset[int], *, alternatives: int
) -> list[dict[str, Any]]:
    """Build LoRAX's ``Token`` for each generated token. With alternatives, ``texts`` maps token ids to texts."""
    logprobs = choice.get("logprobs") or {}
    tokens = []
    token_ids = choice.get("token_ids") or ()
    eos = len(token_ids) - 1 if finish_reason(choice) == "eos_token" else None
    for index, token_id in enumerate(token_ids):
        token = {
            "id": token_id,
            "text": texts[token_id] if alternatives else logprobs["tokens"][index],
            "logprob": logprobs["token_logprobs"][index],
            "special": token_id in special or index == eos,
        }
        if alternatives:
            ranked = sorted(logprobs["top_logprobs"][index].items(), key=_likelihood)[:alternatives]
            token["alternative_tokens"] = [
                {"id": _placeholder_id(name), "text": texts[_placeholder_id(name)], "logprob": logprob}
                for name, logprob in ranked
            ]
        tokens.append(token)
    return tokens


def share_text(tokens: list[dict[str, Any]], text: str) -> None:
    """Adjust token texts so that the tokens that are not special add up to the event's text.

    A single token's text may differ from its part of the whole: half a character, or a space that decoding drops.
    The last token that is not special then carries the whole text. If all are special, the last token is unmarked.
    """
    plain = [token for token in tokens if not token["special"]]
    if text and not plain and tokens:
        tokens[-1]["special"] = False
        plain = [tokens[-1]]
    if "".join(token["text"] for token in plain) == text:
        return
    for token in plain:
        token["text"] = ""
    if plain:
        plain[-1]["text"] = text


def _details(
    generation: Generation, choice: dict[str, Any], texts: dict[int, str], special: frozenset[int]
) -> dict[str, Any]:
    tokens = tokens_of(choice, texts, special, alternatives=generation.alternatives)
    return {
        "finish_reason": finish_reason(choice),
        "generated_tokens": len(tokens),
        "seed": generation.seed,
        "prefill": _prefill(choice, texts) if generation.prefill else [],
        "tokens": tokens,
    }


def _prefill(choice: dict[str, Any], texts: dict[int, str]) -> list[dict[str, Any]]:
    """List the prompt's tokens in LoRAX's shape. The first has no log probability."""
    prefill = []
    for token_id, position in zip(choice["prompt_token_ids"], choice["prompt_logprobs"], strict=True):
        # Keyed by token id. No alternatives were requested, so the prompt's token is the only entry.
        own = next(iter(position.values())) if position else {"logprob": None, "decoded_token": texts[token_id]}
        prefill.append({"id": token_id, "text": own["decoded_token"], "logprob": own["logprob"]})
    return prefill


def _lookup(generation: Generation, choices: list[dict[str, Any]], texts: TokenTexts) -> dict[int, str]:
    """Look up the texts of tokens whose text is missing from the answer, by id."""
    ids: set[int] = set()
    for choice in choices:
        if generation.alternatives and choice.get("token_ids"):
            ids.update(choice["token_ids"])
            for top in choice["logprobs"]["top_logprobs"]:
                ids.update(_placeholder_id(name) for name in top)
        if generation.prefill:
            ids.update(choice["prompt_token_ids"][:1])
    if not ids:
        return {}
    ordered = sorted(ids)
    return dict(zip(ordered, texts(ordered), strict=True))


def _placeholder_id(name: str) -> int:
    return int(name.removeprefix(_PLACEHOLDER))


def _mean_logprob(choice: dict[str, Any]) -> float:
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    if not logprobs:
        return 0.0
    return -math.inf if None in logprobs else sum(logprobs) / len(logprobs)


def _likelihood(alternative: tuple[str, float | None]) -> float:
    """Sort key of alternatives, the most likely first. A null logprob stands for a value that is not a number."""
    return math.inf if alternative[1] is None else -alternative[1]
