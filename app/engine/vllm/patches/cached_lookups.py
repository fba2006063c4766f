"""Cache per-request constants that vLLM recomputes (EOS id, prompt text).

See docs/decisions/0022-less-work-per-token-in-the-api-process.md.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.v1.engine.async_llm import AsyncLLM

_Many = Callable[..., Awaitable[list[Any]]]


def work_out_once(llm: AsyncLLM) -> None:
    """Patch this engine's renderer, and the completions of this process."""
    renderer = llm.renderer
    # transformers searches all special tokens, and then looks up the token's id in its vocabulary under a lock.
    eos = renderer.get_eos_token_id()
    renderer.get_eos_token_id = lambda: eos
    renderer.render_prompts_async = _alone(renderer._render_prompt_async, renderer.render_prompts_async)
    renderer.tokenize_prompts_async = _alone(renderer.tokenize_prompt_async, renderer.tokenize_prompts_async)
    OpenAIServingCompletion._extract_prompt_text = _prompt_text


def _alone(one: Callable[..., Awaitable[Any]], many: _Many) -> _Many:
    """Skip the task that ``many`` creates for each prompt, if there is a single prompt."""

    async def prepared(prompts: Sequence[Any], *args: Any) -> list[Any]:
        return [await one(prompts[0], *args)] if len(prompts) == 1 else await many(prompts, *args)

    return prepared


def _prompt_text(serving: OpenAIServingCompletion, prompt: Any) -> str | None:
    """Return the text of a prompt; None if it came as tokens. vLLM asks for it with every token of a stream."""
    if isinstance(prompt, dict) and prompt.get("type") == "token":
        return prompt.get("prompt")
    text: str | None = serving._extract_prompt_components(prompt).text
    return text
