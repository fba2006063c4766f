"""Chat prompts: render a checked chat body.

Order of precedence:

1. the version's chat template
2. the version's prompt format
3. the server's prompt format
4. the base's chat template
"""

from collections.abc import Mapping
from typing import Any

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.prompts import formats
from app.services.prompts.base_template import BaseTemplate
from app.services.prompts.templates import TemplateFailed, TemplatePool
from app.settings import Settings

#: User text of the trial conversation. A template that uses the messages copies it unchanged.
_MARK = "20 7 1 83"
_PATH = "defaults.chat_template"

_NO_TEMPLATE = (
    "messages needs a chat template, and this model's base has none. Ask the operator to set TENORA_PROMPT_FORMAT, "
    "or a template in the adapter's defaults."
)


class ChatPrompts:
    """Renderer of chats.

    Args:
        tokens: special tokens by the names that templates use.
        base: the base's chat template; None if it has none.
    """

    def __init__(self, settings: Settings, tokens: Mapping[str, str], base: BaseTemplate | None) -> None:
        self._format, self._tokens, self._base = settings.prompt_format, tokens, base
        self._pool = TemplatePool(settings.limits)

    async def close(self) -> None:
        await self._pool.close()

    @property
    def serves_base(self) -> bool:
        """Return whether the base without an adapter answers chats."""
        return bool(self._format) or self._base is not None

    async def render(self, body: Mapping[str, Any], defaults: Mapping[str, Any], *, owner: str) -> str:
        """Render the prompt of a checked chat body.

        Args:
            defaults: defaults of the version that answers; empty for the base.
            owner: slug of the requesting tenant.

        Raises:
            InvalidRequest: the template or format refuses the conversation, the template fails, or there is none.
            UnsupportedField: the template or format does not support tools or tool calls.
            Busy: a template worker failed.
        """
        if "chat_template" in defaults:
            return await self._from_template(defaults["chat_template"], body, owner)
        if name := defaults.get("prompt_format") or self._format:
            return formats.render(name, body)
        if self._base is None:
            raise InvalidRequest(_NO_TEMPLATE, param="messages")
        return await self._base.render(body)

    async def check(self, defaults: Mapping[str, Any], *, owner: str) -> None:
        """Render the defaults' chat template, if there is one, for a trial conversation of one user turn.

        The conversation starts with the defaults' system prompt, if there is one.

        Raises:
            InvalidRequest: the template fails (with its line), or ignores the user's message.
            Busy: a template worker failed.
        """
        if "chat_template" not in defaults:
            return
        turns = [{"role": "user", "content": _MARK}]
        if "system_prompt" in defaults:
            turns.insert(0, {"role": "system", "content": defaults["system_prompt"]})
        try:
            text = await self._pool.render(
                defaults["chat_template"], turns, tools=None, variables=self._tokens, owner=owner
            )
        except TemplateFailed as error:
            raise InvalidRequest(f"{_PATH} failed on a test conversation: {_sentence(error)}", param=_PATH) from None
        if _MARK not in text:
            raise InvalidRequest(
                f"{_PATH} does not output the user's message. Use the variable messages; each message has a role, and "
                "a text as content.",
                param=_PATH,
            )

    async def _from_template(self, template: str, body: Mapping[str, Any], owner: str) -> str:
        turns = [_with_arguments(turn) for turn in formats.plain(body["messages"])]
        if "tool_calls" not in template and any("tool_calls" in turn for turn in turns):
            raise UnsupportedField(
                "messages has tool calls, which the version's chat template does not support.", param="messages"
            )
        try:
            text = await self._pool.render(
                template, turns, tools=body.get("tools"), variables=self._tokens, owner=owner
            )
        except TemplateFailed as error:
            raise _refusal(error) from None
        if not text:
            raise InvalidRequest("The version's chat template made an empty prompt from messages.", param="messages")
        return text


def _refusal(error: TemplateFailed) -> InvalidRequest | UnsupportedField:
    if error.kind == "tools":
        return UnsupportedField("tools is not supported by the version's chat template.", param="tools")
    text = error.message if error.kind == "raised" else _sentence(error)
    outcome = "refused" if error.kind == "raised" else "failed on"
    return InvalidRequest(f"The version's chat template {outcome} messages: {text}", param="messages")


def _sentence(error: TemplateFailed) -> str:
    """Return the error's text with one full stop: Jinja's messages may have one or none."""
    return f"{str(error).rstrip('.')}."


def _with_arguments(turn: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in turn:
        return turn
    return {**turn, "tool_calls": [formats.with_arguments(call) for call in turn["tool_calls"]]}
