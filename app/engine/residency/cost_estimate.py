"""Cost estimate of a request, before its first step."""

import time

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
    """Return the tokens of each prompt, estimated if the engine tokenizes the text itself."""
    if request.token_ids is not None:
        return tuple(map(len, request.token_ids))
    if request.prompt is not None:
        return (_tokens(request.prompt),)
    prompt = request.body["prompt"]
    return tuple(map(_tokens, prompt)) if has_many_prompts(request.body) else (_tokens(prompt),)


def _tokens(prompt: str | list[int]) -> int:
    """Estimate the tokens of a text; exact for token ids."""
    if isinstance(prompt, str):
        return 1 + len(prompt.encode()) // _BYTES_PER_TOKEN
    return len(prompt)
