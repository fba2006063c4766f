"""Requests of Anthropic's Messages, translated to chats.

- ``system`` becomes a system message in front.
- Consecutive turns of one role are one turn, as in Anthropic's API. Many chat templates require that roles alternate.
- A ``tool_use`` block becomes a tool call of the assistant's message, a ``tool_result`` block a message of the role
  ``tool``. The text of a result with ``is_error`` begins with ``Error: ``, as a chat has no such mark.
"""

import json
from dataclasses import dataclass
from typing import Any

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies import openai as chats
from app.services.bodies.anthropic_answers import MessageEvents, whole_message
from app.services.bodies.field_checks import boolean, fields, known_fields, one_of, other_fields, refuse, text
from app.services.bodies.field_table import COUNT_TOKENS, MESSAGES, SAMPLING, FieldTable
from app.services.bodies.messages import check_arguments
from app.services.bodies.parsing import shown
from app.services.bodies.renaming import Renaming
from app.services.bodies.translated_events import AnswerFacts, EventWriter
from app.settings import LimitSettings

RENAMING = Renaming(
    (r"'?\bmax_tokens\b'? or '?\bmax_completion_tokens\b'?", "max_tokens"),
    (r"\bmax_completion_tokens\b", "max_tokens"),
    (r"\bmessages\.\d+\.role\b", "messages.role"),
    (r"\bmessages(?!\.role\b)(?:\.\w+)*", "messages"),
    (r"\btools\.(\d+)\.function\.parameters\b", r"tools.\1.input_schema"),
    (r"\btools\.(\d+)\.function\b", r"tools.\1"),
    (r"\btool_choice\.function\b", "tool_choice"),
    (r"\bresponse_format(?:\.json_schema)?\b", "output_config.format"),
)

#: Fields that a chat has under the same name and with the same meaning.
_SAME = (*SAMPLING, "max_tokens", "stream")

_TEXT = ("type", "text")
_USE = ("type", "id", "name", "input")
_RESULT = ("type", "tool_use_id", "content", "is_error")
_TOOL = ("type", "name", "description", "input_schema", "strict")
_THOUGHTS = ("thinking", "redacted_thinking")
#: Beginning of a system block in which coding agents report themselves. It changes with each request, so the prefix
#: cache would hold nothing for their conversations.
_BILLING = "x-anthropic-billing-header"
_IGNORED_EDITS = "clear_thinking_"
#: A chat's ``response_format`` has a name, Anthropic's does not.
_FORMAT_NAME = "output"
_ERROR = "Error: "
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_PARALLEL = "disable_parallel_tool_use"

_TEXT_ONLY = "The base reads text only."
_NO_EDITS = "Shorten the conversation in messages instead."
_SERVER_TOOL = "This server runs no tools. Define a tool with an input_schema, and run it in your application."
_PREFILL = (
    "The last turn of messages is the assistant's, but an answer cannot be prefilled. End with a turn of the user."
)


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A translated request, see :class:`app.services.bodies.translated_events.TranslatedRequest`.

    Attributes:
        stops: stop sequences of the request.
    """

    chat: dict[str, Any]
    ignored: tuple[str, ...]
    stops: tuple[str, ...] = ()
    renaming: Renaming = RENAMING

    def whole(self, answer: dict[str, Any], facts: AnswerFacts) -> dict[str, Any]:
        return whole_message(self.stops, answer, facts)

    def writer(self, facts: AnswerFacts) -> EventWriter:
        return MessageEvents(self.stops, facts)


def messages_request(body: dict[str, Any], limits: LimitSettings) -> MessagesRequest:
    """Check a body of ``/v1/messages`` and translate it.

    Raises:
        InvalidRequest, UnsupportedField
    """
    return _translated(body, MESSAGES, limits)


def count_request(body: dict[str, Any], limits: LimitSettings) -> MessagesRequest:
    """Check a body of ``/v1/messages/count_tokens`` and translate it.

    Raises:
        InvalidRequest, UnsupportedField
    """
    return _translated(body, COUNT_TOKENS, limits)


def _translated(body: dict[str, Any], table: FieldTable, limits: LimitSettings) -> MessagesRequest:
    sent = table.checked(body, limits)
    ignored = [*table.ignored_in(body)]
    conversation = _Conversation(ignored, limits)
    if "system" in sent:
        conversation.begin(sent["system"])
    conversation.read(sent["messages"])
    chat = {name: sent[name] for name in _SAME if name in sent} | {"messages": conversation.turns}
    if "tools" in sent:
        chat["tools"] = _tools(sent["tools"], ignored)
    if "tool_choice" in sent:
        chat |= _tool_choice(sent["tool_choice"], limits)
    if "output_config" in sent:
        chat |= _output_format(sent["output_config"], ignored)
    if "context_management" in sent:
        _check_edits(sent["context_management"], ignored)
    if sent.get("stop_sequences"):
        chat["stop"] = sent["stop_sequences"]
    if sent.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    try:
        checked = chats.chat_body(chat, limits)
    except (InvalidRequest, UnsupportedField) as error:
        raise RENAMING.error(error) from None
    idle = (_idle_name(name) for name in chats.ignored(chat))
    return MessagesRequest(checked, (*ignored, *idle), tuple(sent.get("stop_sequences", ())))


def _idle_name(name: str) -> str:
    return f"tool_choice.{_PARALLEL}" if name == "parallel_tool_calls" else name


class _Conversation:
    """Messages of a chat, built from Anthropic's turns.

    Attributes:
        ignored: names of ignored keys, where more are added.
        turns: messages so far.
    """

    def __init__(self, ignored: list[str], limits: LimitSettings) -> None:
        self.ignored, self._limits = ignored, limits
        self.turns: list[dict[str, Any]] = []
        self._system: dict[str, Any] | None = None

    def begin(self, system: Any) -> None:
        """Add the system prompt. An empty one counts as not sent."""
        content = system
        if not isinstance(system, str):
            if not isinstance(system, list):
                raise refuse("system", system, "a text or an array of text blocks")
            blocks = [self._text(block, f"system.{index}", "system[]") for index, block in enumerate(system)]
            content = [block for block in blocks if not block["text"].startswith(_BILLING)]
            if len(content) < len(blocks):
                self.ignored.append(f"system[].{_BILLING}")
        if content:
            self._system = {"role": "system", "content": content}
            self.turns.append(self._system)

    def read(self, value: Any) -> None:
        if not isinstance(value, list) or not value:
            raise refuse("messages", value, "an array of at least one turn")
        for index, turn in enumerate(value):
            self._turn(turn, f"messages.{index}")
        if self.turns[-1]["role"] == "assistant":
            raise UnsupportedField(_PREFILL, param="messages")

    def _turn(self, turn: Any, path: str) -> None:
        message = known_fields(turn, path, ("role", "content"), required=("role", "content"))
        self.ignored += other_fields(turn, "messages[]", ("role", "content"))
        role = one_of("user", "assistant", "system")(message["role"], f"{path}.role", self._limits)
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            raise refuse(f"{path}.content", content, "a text or an array of blocks")
        read = {"user": self._asked, "assistant": self._answered, "system": self._instructed}[role]
        self._joined(role)
        for index, block in enumerate(blocks):
            read(block, f"{path}.content.{index}")

    def _instructed(self, block: Any, path: str) -> None:
        self._add_text("system", block, path, "'text'")

    def _asked(self, block: Any, path: str) -> None:
        if _kind(block) == "tool_result":
            self._result(block, path)
        else:
            self._add_text("user", block, path, "'text' or 'tool_result'")

    def _answered(self, block: Any, path: str) -> None:
        kind = _kind(block)
        if kind == "tool_use":
            self._use(block, path)
        elif kind in _THOUGHTS:
            self.ignored.append(f"messages[].content[].{kind}")
        else:
            self._add_text("assistant", block, path, "'text' or 'tool_use'")

    def _add_text(self, role: str, block: Any, path: str, kinds: str) -> None:
        part = self._text(block, path, "messages[].content[]", kinds)
        self._joined(role)["content"].append(part)

    def _joined(self, role: str) -> dict[str, Any]:
        """Return the newest message if it has this role, else a new one."""
        if not self.turns or self.turns[-1]["role"] != role or self.turns[-1] is self._system:
            self.turns.append({"role": role, "content": []})
        return self.turns[-1]

    def _use(self, block: dict[str, Any], path: str) -> None:
        use = known_fields(block, path, _USE, required=_USE)
        self.ignored += other_fields(block, "messages[].content[]", _USE)
        if not isinstance(use["input"], dict):
            raise refuse(f"{path}.input", use["input"], "an object")
        check_arguments(use["input"], f"{path}.input")
        names = {name: text(use[name], f"{path}.{name}") for name in ("id", "name")}
        function = {"name": names["name"], "arguments": json.dumps(use["input"], ensure_ascii=False)}
        calls = self._joined("assistant").setdefault("tool_calls", [])
        calls.append({"id": names["id"], "type": "function", "function": function})

    def _result(self, block: dict[str, Any], path: str) -> None:
        result = known_fields(block, path, _RESULT, required=("tool_use_id",))
        self.ignored += other_fields(block, "messages[].content[]", _RESULT)
        name, content = "messages[].content[].content[]", result.get("content", "")
        if not isinstance(content, str):
            if not isinstance(content, list):
                raise refuse(f"{path}.content", content, "a text or an array of text blocks")
            content = [self._text(part, f"{path}.content.{index}", name) for index, part in enumerate(content)]
        if boolean(result.get("is_error", False), f"{path}.is_error", self._limits):
            content = _as_error(content)
        call_id = text(result["tool_use_id"], f"{path}.tool_use_id")
        turn = {"role": "tool", "tool_call_id": call_id, "content": content}
        if self.turns and self.turns[-1] == {"role": "user", "content": []}:
            self.turns.pop()
        self.turns.append(turn)

    def _text(self, block: Any, path: str, name: str, kinds: str = "'text'") -> dict[str, str]:
        kind = _kind(block)
        if kind != "text":
            message = f"{path}.type is {shown(kind)}; it must be {kinds}. {_TEXT_ONLY}"
            raise UnsupportedField(message, param=f"{path}.type")
        self.ignored += other_fields(block, name, _TEXT)
        return {"type": "text", "text": text(block.get("text"), f"{path}.text")}


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


def _as_error(content: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return _ERROR + content
    first, *rest = content or [{"type": "text", "text": ""}]
    return [first | {"text": _ERROR + first["text"]}, *rest]


def _tools(value: Any, ignored: list[str]) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise refuse("tools", value, "an array of tools")
    return [{"type": "function", "function": _tool(tool, f"tools.{i}", ignored)} for i, tool in enumerate(value)]


def _tool(value: Any, path: str, ignored: list[str]) -> dict[str, Any]:
    if isinstance(value, dict) and value.get("type") not in (None, "custom"):
        raise UnsupportedField(f"{path}.type is {shown(value['type'])}. {_SERVER_TOOL}", param=f"{path}.type")
    tool = known_fields(value, path, _TOOL, required=("name", "input_schema"))
    if value.get("defer_loading"):
        raise UnsupportedField(f"{path}.defer_loading is not supported.", param=f"{path}.defer_loading")
    ignored += other_fields(value, "tools[]", _TOOL)
    tool.pop("type", None)
    schema = tool.pop("input_schema")
    return tool | {"parameters": schema}


def _tool_choice(value: Any, limits: LimitSettings) -> dict[str, Any]:
    choice = fields(value, "tool_choice", {"type", "name", _PARALLEL}, required=("type",))
    kind = one_of(*_CHOICES, "tool")(choice["type"], "tool_choice.type", limits)
    if kind == "tool":
        if "name" not in choice:
            raise InvalidRequest("tool_choice.name is missing.", param="tool_choice.name")
        translated: dict[str, Any] = {"tool_choice": {"type": "function", "function": {"name": choice["name"]}}}
    else:
        translated = {"tool_choice": _CHOICES[kind]}
    if _PARALLEL in choice:
        translated["parallel_tool_calls"] = not boolean(choice[_PARALLEL], f"tool_choice.{_PARALLEL}", limits)
    return translated


def _output_format(value: Any, ignored: list[str]) -> dict[str, Any]:
    options = fields(value, "output_config", {"format", "effort"})
    if "effort" in options:
        ignored.append("output_config.effort")
    if "format" not in options:
        return {}
    path = "output_config.format"
    form = fields(options["format"], path, {"type", "schema"}, required=("type", "schema"))
    if form["type"] != "json_schema":
        raise refuse(f"{path}.type", form["type"], "'json_schema'")
    inner = {"name": _FORMAT_NAME, "schema": form["schema"]}
    return {"response_format": {"type": "json_schema", "json_schema": inner}}


def _check_edits(value: Any, ignored: list[str]) -> None:
    """Allow edits that remove thinking, of which there is none."""
    edits = fields(value, "context_management", {"edits"}).get("edits", [])
    if not isinstance(edits, list):
        raise refuse("context_management.edits", edits, "an array")
    for index, edit in enumerate(edits):
        kind = _kind(edit)
        if not isinstance(kind, str) or not kind.startswith(_IGNORED_EDITS):
            path = f"context_management.edits.{index}.type"
            raise UnsupportedField(f"{path} is {shown(kind)}. {_NO_EDITS}", param=path)
    ignored.append("context_management")
