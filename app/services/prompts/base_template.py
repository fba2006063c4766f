"""Chat template of the base, rendered as vLLM renders it.

The base's template is the operator's choice, and vLLM too renders it in the server's process. So it is compiled once
and needs no child process, unlike the templates of versions: see docs/decisions/0044-tokens-of-the-gateway.md.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from app.domain.errors import InvalidRequest
from app.services.prompts import formats
from app.services.prompts.content_format import reads_parts
from app.services.prompts.template_worker import environment
from app.support.chat_template import read_template

_log = logging.getLogger(__name__)

_MESSAGE_CHARS = 500
#: Conversations of more characters are rendered in a thread.
_INLINE_CHARS = 50_000
_TOOLS = "tool_use"


class BaseTemplate:
    """Compiled chat template of the base.

    Args:
        text: the template.
        with_tools: template for requests with tools, if the base has another one for them.
        variables: special tokens by the names that templates use.
    """

    def __init__(self, text: str, variables: Mapping[str, str], *, with_tools: str | None = None) -> None:
        self._plain, self._variables = _Compiled(text), dict(variables)
        self._with_tools = self._plain if with_tools is None else _Compiled(with_tools)

    @classmethod
    def read(cls, base: Path, variables: Mapping[str, str]) -> "BaseTemplate | None":
        """Read the template of a base; None if it has none. Blocks."""
        text, with_tools = read_template(base), read_template(base, _TOOLS)
        default = text or with_tools
        try:
            return None if default is None else cls(default, variables, with_tools=with_tools)
        except jinja2.TemplateSyntaxError as error:
            _log.warning("The base's chat template is not valid and does not apply: line %d: %s", error.lineno, error)
            return None

    async def render(self, body: Mapping[str, Any]) -> str:
        """Render the prompt of a checked chat body.

        Raises:
            InvalidRequest: the template refuses the conversation, or fails.
        """
        tools = body.get("tools")
        template = self._plain if tools is None else self._with_tools
        context = self._variables | {
            "messages": template.messages(body["messages"]),
            "tools": None if tools is None else [_tool(tool) for tool in tools],
            "documents": None,
            "add_generation_prompt": True,
        }
        size = sum(len(str(message.get("content", ""))) for message in body["messages"])
        try:
            if size <= _INLINE_CHARS:
                return template.jinja.render(context)
            return await asyncio.to_thread(template.jinja.render, context)
        except Exception as error:  # noqa: BLE001 - a template's expressions can raise anything
            raise InvalidRequest(str(error)[:_MESSAGE_CHARS], param="messages") from None


class _Compiled:
    def __init__(self, text: str) -> None:
        sandbox = environment()
        tree = sandbox.parse(text)
        self.jinja = sandbox.from_string(text)
        self._parts = reads_parts(tree)

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages with content in the form that the template reads: parts, or one text."""
        return [self._message(message) for message in messages]

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        content, role = message.get("content"), message["role"]
        read: str | list[dict[str, str]] = formats.plain_text(content or "")
        if self._parts:
            read = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
            if role == "tool":  # a text in any form
                read = "\n".join(part["text"] for part in read)
        calls = [_call(call) for call in message.get("tool_calls", ())]
        others = {"tool_calls": calls or None, "tool_call_id": message.get("tool_call_id"), "name": message.get("name")}
        return {"role": role, "content": read} | {name: value for name, value in others.items() if value is not None}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call with its keys in the order of vLLM's request schema, which templates print."""
    function = formats.with_arguments(call)["function"]
    ordered = {"arguments": function["arguments"], "name": function["name"]}
    return {"id": call["id"], "function": ordered, "type": call["type"]}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool with the defaults of vLLM's request schema."""
    function = tool["function"]
    filled = {name: function.get(name) for name in ("name", "description", "parameters")}
    strict = {} if function.get("strict") is None else {"strict": function["strict"]}
    return {"type": "function", "function": filled | strict}
