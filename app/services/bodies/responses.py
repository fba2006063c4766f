"""Requests of OpenAI's Responses, translated to chats.

``instructions`` becomes a system message in front of ``input``. Each message item becomes a message. A function call
joins the assistant's message in front of it, or begins one, and its output becomes a message of the role ``tool``. So a
conversation has the same prompt as in a chat.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies import field_checks
from app.services.bodies import openai as chats
from app.services.bodies.field_checks import (
    boolean,
    fields,
    known_fields,
    one_of,
    other_fields,
    refuse,
    supported_only,
    text,
)
from app.services.bodies.field_table import RESPONSES, SAMPLING
from app.services.bodies.parsing import shown
from app.services.bodies.renaming import Renaming
from app.services.bodies.responses_answers import ResponseEvents, whole_response
from app.services.bodies.translated_events import AnswerFacts, EventWriter
from app.settings import LimitSettings

RENAMING = Renaming(
    (r"'?\bmax_tokens\b'? or '?\bmax_completion_tokens\b'?", "max_output_tokens"),
    (r"\bmax_(?:completion_)?tokens\b", "max_output_tokens"),
    (r"\bmessages\.\d+\.role\b", "input.role"),
    (r"\bmessages(?:\.\w+)*", "input"),
    (r"\btools\.(\d+)\.function\b", r"tools.\1"),
    (r"\btool_choice\.function\b", "tool_choice"),
    (r"\bresponse_format(?:\.json_schema)?\b", "text.format"),
)

#: Fields that a chat has under the same name and with the same meaning.
_SAME = (*SAMPLING, "stop", "top_logprobs", "parallel_tool_calls", "stream")

_LOGPROBS = "message.output_text.logprobs"
#: Values of ``include`` for output that this server never has.
_NEVER_INCLUDED = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)

_ROLES = ("user", "assistant", "system", "developer")
_MESSAGE = ("type", "role", "content")
_CALL = ("type", "call_id", "name", "arguments")
_OUTPUT = ("type", "call_id", "output")
_TOOL = ("type", "name", "description", "parameters", "strict")
_FORMAT = ("name", "description", "schema", "strict")
#: Key that holds the text, by the type of a content part.
_PART_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}

_REFERENCE = (
    "This server keeps no items. Send the items themselves. With the AI SDK, set providerOptions.openai.store = false."
)
_TEXT_ONLY = "The base reads text only."
_HOSTED = "This server runs no hosted tools. Define a tool of type 'function', and run it in your application."


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A translated request, see :class:`app.services.bodies.translated_events.TranslatedRequest`.

    Attributes:
        shown: fields of the request that its answer repeats.
    """

    chat: dict[str, Any]
    ignored: tuple[str, ...]
    shown: dict[str, Any]
    renaming: Renaming = RENAMING

    def whole(self, answer: dict[str, Any], facts: AnswerFacts) -> dict[str, Any]:
        return whole_response(self.shown, answer, facts)

    def writer(self, facts: AnswerFacts) -> EventWriter:
        return ResponseEvents(self.shown, facts)


def responses_request(body: dict[str, Any], limits: LimitSettings) -> ResponsesRequest:
    """Check a body of ``/v1/responses`` and translate it.

    Raises:
        InvalidRequest, UnsupportedField
    """
    sent = RESPONSES.checked(body, limits)
    ignored = [*RESPONSES.ignored_in(body)]
    conversation = _Conversation(ignored)
    if sent.get("instructions"):
        conversation.say("system", sent["instructions"])
    conversation.read(sent["input"])
    chat = {name: sent[name] for name in _SAME if name in sent} | {"messages": conversation.turns}
    if "max_output_tokens" in sent:
        chat["max_tokens"] = sent["max_output_tokens"]
    if "user" in sent:
        chat["user"] = sent["user"]
    if "tools" in sent:
        chat["tools"] = _tools(sent["tools"], ignored)
    if "tool_choice" in sent:
        chat["tool_choice"] = _tool_choice(sent["tool_choice"], limits)
    if "text" in sent:
        chat |= _format(sent["text"], limits)
    if _asks_for_logprobs(sent, ignored):
        chat["logprobs"] = True
    if sent.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    _check_stream_options(sent, ignored, limits)
    try:
        checked = chats.chat_body(chat, limits)
    except (InvalidRequest, UnsupportedField) as error:
        raise RENAMING.error(error) from None
    return ResponsesRequest(checked, (*ignored, *chats.ignored(chat)), _shown(sent, checked))


class _Conversation:
    """Messages of a chat, built from the items of an input.

    Attributes:
        ignored: names of ignored keys, where more are added.
        turns: messages so far.
    """

    def __init__(self, ignored: list[str]) -> None:
        self.ignored = ignored
        self.turns: list[dict[str, Any]] = []

    def say(self, role: str, content: Any) -> None:
        self.turns.append({"role": role, "content": content})

    def read(self, value: Any) -> None:
        if isinstance(value, str):
            self.say("user", value)
            return
        if not isinstance(value, list) or not value:
            raise refuse("input", value, "a text or an array of at least one item")
        for index, item in enumerate(value):
            self._item(item, f"input.{index}")

    def _item(self, item: Any, path: str) -> None:
        if not isinstance(item, dict):
            raise refuse(path, item, "an item (an object)")
        match item.get("type", "message"):
            case "message" | None:
                self._message(item, path)
            case "function_call":
                self._call(item, path)
            case "function_call_output":
                self._output(item, path)
            case "reasoning":
                self.ignored.append("input[].reasoning")
            case "item_reference":
                raise UnsupportedField(f"{path}.type is 'item_reference'. {_REFERENCE}", param=f"{path}.type")
            case kind:
                raise UnsupportedField(
                    f"{path}.type is {shown(kind)}; it must be 'message', 'function_call' or 'function_call_output'.",
                    param=f"{path}.type",
                )

    def _message(self, item: dict[str, Any], path: str) -> None:
        message = known_fields(item, path, _MESSAGE, required=("content",))
        role = message.get("role")
        if role not in _ROLES:
            raise refuse(f"{path}.role", role, f"one of {', '.join(_ROLES)}")
        self.ignored += other_fields(item, "input[]", _MESSAGE)
        self.say(role, self._content(message["content"], f"{path}.content", "input[].content[]"))

    def _call(self, item: dict[str, Any], path: str) -> None:
        call = known_fields(item, path, _CALL, required=_CALL)
        self.ignored += other_fields(item, "input[]", _CALL)
        names = {name: text(call[name], f"{path}.{name}") for name in ("call_id", "name", "arguments")}
        function = {"name": names["name"], "arguments": names["arguments"]}
        if not self.turns or self.turns[-1]["role"] != "assistant":
            self.turns.append({"role": "assistant", "content": None})
        calls = self.turns[-1].setdefault("tool_calls", [])
        calls.append({"id": names["call_id"], "type": "function", "function": function})

    def _output(self, item: dict[str, Any], path: str) -> None:
        output = known_fields(item, path, _OUTPUT, required=_OUTPUT)
        self.ignored += other_fields(item, "input[]", _OUTPUT)
        content = self._content(output["output"], f"{path}.output", "input[].output[]")
        call_id = text(output["call_id"], f"{path}.call_id")
        self.turns.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _content(self, value: Any, path: str, name: str) -> Any:
        if isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise refuse(path, value, "a string or an array of text parts")
        return [self._part(part, f"{path}.{index}", name) for index, part in enumerate(value)]

    def _part(self, part: Any, path: str, name: str) -> dict[str, str]:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in _PART_TEXTS:
            message = f"{path}.type is {shown(kind)}; it must be 'input_text' or 'output_text'. {_TEXT_ONLY}"
            raise UnsupportedField(message, param=f"{path}.type")
        key = _PART_TEXTS[kind]
        self.ignored += other_fields(part, name, ("type", key))
        return {"type": "text", "text": text(part.get(key), f"{path}.{key}")}


def _tools(value: Any, ignored: list[str]) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise refuse("tools", value, "an array of tools")
    return [{"type": "function", "function": _tool(tool, f"tools.{i}", ignored)} for i, tool in enumerate(value)]


def _tool(value: Any, path: str, ignored: list[str]) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind != "function":
        raise UnsupportedField(f"{path}.type is {shown(kind)}. {_HOSTED}", param=f"{path}.type")
    if value.get("defer_loading"):
        raise UnsupportedField(f"{path}.defer_loading is not supported.", param=f"{path}.defer_loading")
    ignored += other_fields(value, "tools[]", _TOOL)
    return {name: item for name, item in known_fields(value, path, _TOOL).items() if name != "type"}


def _tool_choice(value: Any, limits: LimitSettings) -> Any:
    if isinstance(value, str):
        return one_of("none", "auto", "required")(value, "tool_choice", limits)
    kind = value.get("type") if isinstance(value, dict) else None
    if kind != "function":
        raise UnsupportedField(
            f"tool_choice.type is {shown(kind)}; it must be 'function'. {_HOSTED}", param="tool_choice.type"
        )
    chosen = fields(value, "tool_choice", {"type", "name"}, required=("name",))
    return {"type": "function", "function": {"name": chosen["name"]}}


def _format(value: Any, limits: LimitSettings) -> dict[str, Any]:
    """Translate ``text`` to a chat's ``response_format``."""
    options = fields(value, "text", {"format", "verbosity"})
    if "verbosity" in options:
        supported_only("medium")(options["verbosity"], "text.verbosity", limits)
    if "format" not in options:
        return {}
    form = fields(options["format"], "text.format", {"type", *_FORMAT}, required=("type",))
    kind = one_of("text", "json_object", "json_schema")(form["type"], "text.format.type", limits)
    if kind != "json_schema":
        return {"response_format": {"type": kind}}
    inner = {name: item for name, item in form.items() if name != "type"}
    return {"response_format": {"type": kind, "json_schema": inner}}


def _asks_for_logprobs(sent: dict[str, Any], ignored: list[str]) -> bool:
    """Check ``include``, and return whether the answer must have logprobs."""
    values = sent.get("include", [])
    if not isinstance(values, list):
        raise refuse("include", values, "an array of strings")
    for value in values:
        if value in _NEVER_INCLUDED:
            ignored.append("include[]")
        elif value != _LOGPROBS:
            raise UnsupportedField(f"include has {shown(value)}; it may have {_LOGPROBS!r}.", param="include")
    return _LOGPROBS in values or bool(sent.get("top_logprobs"))


def _check_stream_options(sent: dict[str, Any], ignored: list[str], limits: LimitSettings) -> None:
    if "stream_options" not in sent:
        return
    if not sent.get("stream"):
        raise InvalidRequest("stream_options is allowed only if stream is true.", param="stream_options")
    options = fields(sent["stream_options"], "stream_options", field_checks.IGNORED_STREAM_OPTIONS)
    for name, value in options.items():
        boolean(value, f"stream_options.{name}", limits)
        ignored.append(f"stream_options.{name}")


def _shown(sent: dict[str, Any], chat: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an answer that repeat the request, with OpenAI's defaults."""
    repeated = {name: sent.get(name) for name in ("instructions", "max_output_tokens", "temperature", "top_p", "user")}
    return {
        "background": False,
        "conversation": None,
        **repeated,
        "max_tool_calls": None,
        "metadata": sent.get("metadata", {}),
        "parallel_tool_calls": sent.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "prompt": None,
        "reasoning": None,
        "service_tier": None,
        "store": False,
        "text": {"format": {"type": "text"}}
        | {name: v for name, v in sent.get("text", {}).items() if name == "format"},
        "tool_choice": sent.get("tool_choice", "auto"),
        "tools": [*_shown_tools(chat.get("tools", ()))],
        "top_logprobs": sent.get("top_logprobs", 0),
        "truncation": "disabled",
    }


def _shown_tools(tools: Any) -> Iterator[dict[str, Any]]:
    for tool in tools:
        yield {"type": "function", "description": None, "parameters": None, "strict": None, **tool["function"]}
