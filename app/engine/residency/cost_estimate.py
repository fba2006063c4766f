"""Cost estimate of a request, before the engine has counted its tokens."""

import time
from typing import Any

from app.engine.port import EngineRequest
from app.engine.request_size import has_many_prompts, prompt_count
from app.scheduling.admission_request import AdmissionRequest

#: Bytes of text per token, roughly right for English and code. The true count replaces the estimate later.
_BYTES_PER_TOKEN = 4
#: Output tokens assumed without ``max_tokens``. OpenAI defaults to 16 for completions, and to what fits for chats.
_OUTPUT_TOKENS = 256


def admission_request(request: EngineRequest) -> AdmissionRequest:
    """Build the admission request of a request. Its deadline counts from now, by ``time.monotonic``."""
    body = request.body
    sequences = prompt_count(body) * int(body.get("n") or 1)
    limits = (body.get("max_completion_tokens"), body.get("max_tokens"), _OUTPUT_TOKENS)
    output_tokens = next(tokens for tokens in limits if tokens is not None)
    deadline = None if request.deadline_s is None else time.monotonic() + request.deadline_s
    return AdmissionRequest(
        request_id=request.request_id,
        tenant=request.tenant,
        weight=request.weight,
        version_id=request.adapter.version_id if request.adapter else None,
        prompts=_prompts(request),
        output_tokens=int(output_tokens),
        sequences=sequences,
        deadline=deadline,
    )


def _prompts(request: EngineRequest) -> tuple[int, ...]:
    """Return the tokens of each prompt, estimated unless they are known."""
    if request.rendered is not None:
        return tuple(request.rendered.counts)
    if request.prompt is not None:
        return (_tokens(request.prompt),)
    if prompt := request.body.get("prompt"):
        return tuple(map(_tokens, prompt)) if has_many_prompts(request.body) else (_tokens(prompt),)
    messages: list[dict[str, Any]] = request.body.get("messages", [])
    # The rendered tools may be longer than all messages together.
    tools = [request.body.get("tools"), *(message.get("tool_calls") for message in messages)]
    contents = [message.get("content") for message in messages]
    return (_tokens(contents) + _bytes(tools) // _BYTES_PER_TOKEN,)


def _tokens(prompt: Any) -> int:
    """Estimate the tokens of a text, of token ids, or of a list of either; exact for token ids."""
    if isinstance(prompt, str):
        return 1 + _bytes(prompt) // _BYTES_PER_TOKEN
    if isinstance(prompt, list):
        if prompt and isinstance(prompt[0], int):
            return len(prompt)
        return sum(_tokens(part) for part in prompt)
    if isinstance(prompt, dict):
        return _tokens(prompt.get("text"))
    return 0


def _bytes(value: Any) -> int:
    """Count the UTF-8 bytes of all strings in a JSON value, field names included, at any depth."""
    total, rest = 0, [value]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            # JSON may contain half a surrogate pair.
            total += len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
        elif isinstance(value, list):
            rest += value
        elif isinstance(value, dict):
            rest += [*value, *value.values()]
    return total
