"""Prompt formats of Llama 2, Llama 3 and Mistral, for bases without a chat template.

Each format is a pure function from turns to the prompt string that its makers document. The string begins with the
format's BOS token in written form. The engine adds no second one when it tokenizes a chat prompt.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.domain.errors import InvalidRequest, UnsupportedField

#: One turn of a chat: ``role`` (system, user or assistant) and ``content`` (text).
Turn = Mapping[str, Any]

_PATH = "messages"
_ORDER = "In the prompt format {}, user and assistant alternate after a system prompt, and the user's turn is last."


def llama_2(turns: Sequence[Turn]) -> str:
    """Llama 2's chat format.

    ``<s>[INST] <<SYS>>\\n{system}\\n<</SYS>>\\n\\n{user} [/INST] {answer} </s><s>[INST] {user} [/INST]``

    Sources: ``chat_completion`` in llama/generation.py of Meta's repository for Llama 2 (the tags ``B_SYS`` and
    ``E_SYS`` hold the newlines, and every text is stripped), and
    https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-2/.
    """
    system, rest = _alternating(turns, "llama-2")
    first = f"<<SYS>>\n{system}\n<</SYS>>\n\n" if system is not None else ""
    parts = []
    for number, turn in enumerate(rest):
        text = (first + turn["content"] if number == 0 else turn["content"]).strip()
        parts.append(f" {text} </s>" if turn["role"] == "assistant" else f"<s>[INST] {text} [/INST]")
    return "".join(parts)


def llama_3(turns: Sequence[Turn]) -> str:
    """Llama 3's chat format.

    ``<|begin_of_text|>``, each turn as ``<|start_header_id|>{role}<|end_header_id|>\\n\\n{text}<|eot_id|>``, and the
    header of the assistant's next turn.

    Sources: ``ChatFormat`` in llama/tokenizer.py of Meta's repository for Llama 3 (every text is stripped), and
    https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-3/.
    """
    parts = [_llama_3_header(turn["role"]) + turn["content"].strip() + "<|eot_id|>" for turn in turns]
    return "".join(["<|begin_of_text|>", *parts, _llama_3_header("assistant")])


def mistral(turns: Sequence[Turn]) -> str:
    """Mistral's chat format.

    ``<s>[INST] {user} [/INST] {answer}</s>[INST] {user} [/INST]``, with the system prompt before the first user's text.

    Sources: Mistral's documentation of its 7B and Mixtral instruct models, with ``System Prompt + Instruction`` in the
    first turn: https://docs.mistral.ai/usage/guardrailing and, under "Tokenizer V1",
    https://docs.mistral.ai/cookbook/concept-deep-dive-tokenization-templates. The blank line after the system prompt is
    mistral-common's.
    """
    system, rest = _alternating(turns, "mistral")
    first = f"{system}\n\n" if system is not None else ""
    parts = ["<s>"]
    for number, turn in enumerate(rest):
        text = first + turn["content"] if number == 0 else turn["content"]
        parts.append(f" {text}</s>" if turn["role"] == "assistant" else f"[INST] {text} [/INST]")
    return "".join(parts)


FORMATS: dict[str, Callable[[Sequence[Turn]], str]] = {"llama-2": llama_2, "llama-3": llama_3, "mistral": mistral}


def render(name: str, body: Mapping[str, Any]) -> str:
    """Render the prompt of a checked chat body in the named format.

    Raises:
        UnsupportedField: tools or tool calls, which no format supports.
        InvalidRequest: the format does not allow this order of turns.
    """
    if "tools" in body:
        raise UnsupportedField(f"tools is not supported by the prompt format {name}.", param="tools")
    for index, message in enumerate(body["messages"]):
        if message["role"] == "tool" or message.get("tool_calls"):
            path = f"{_PATH}.{index}"
            raise UnsupportedField(f"{path}: tool calls are not supported by the prompt format {name}.", param=path)
    return FORMATS[name](plain(body["messages"]))


def plain(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Flatten the content of checked messages to one text each. Parts are joined by newlines, as the engine does."""
    return [{**message, "content": plain_text(message.get("content", ""))} for message in messages]


def plain_text(content: str | Sequence[Mapping[str, str]]) -> str:
    """Flatten the content of one checked message. Empty parts are left out, as in vLLM."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if part["text"])


def with_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the arguments of a checked tool call into an object, as templates expect and the engine passes them."""
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}


def _llama_3_header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


def _alternating(turns: Sequence[Turn], name: str) -> tuple[str | None, Sequence[Turn]]:
    """Split turns into the system prompt, if any, and the turns after it: user, assistant, user, ..., user.

    Raises:
        InvalidRequest: the turns do not alternate, or the last one is not the user's.
    """
    system, rest = (turns[0]["content"], turns[1:]) if turns[0]["role"] == "system" else (None, turns)
    offset = len(turns) - len(rest)
    for index, turn in enumerate(rest):
        expected = "assistant" if index % 2 else "user"
        if turn["role"] != expected:
            path = f"{_PATH}.{index + offset}.role"
            order = _ORDER.format(name)
            raise InvalidRequest(f"{path} is {turn['role']!r}; it must be {expected!r}. {order}", param=path)
    if not len(rest) % 2:
        raise InvalidRequest(f"{_PATH} does not end with a user's turn. {_ORDER.format(name)}", param=_PATH)
    return system, rest
