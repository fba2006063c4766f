"""The prompt formats of Llama 2, Llama 3 and Mistral by name, for bases that ship no chat template.

Each is a pure function from turns to the one string that the format's makers document. The strings begin with
the format's own BOS token in its written form; the engine tokenizes a chat's prompt without adding another.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.domain.errors import InvalidRequest, UnsupportedField

#: A turn of a chat: ``role`` (system, user or assistant) and ``content``, a text.
Turn = Mapping[str, Any]

_PATH = "messages"
_ORDER = "the prompt format {} has a system prompt only at the start, and ends with the user's turn"


def llama_2(turns: Sequence[Turn]) -> str:
    """``<s>[INST] <<SYS>>\\n{system}\\n<</SYS>>\\n\\n{user} [/INST] {answer} </s><s>[INST] {user} [/INST]``

    As ``chat_completion`` in llama/generation.py of Meta's repository for Llama 2 writes it (the tags ``B_SYS``
    and ``E_SYS`` hold the newlines; every text is stripped), and
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
    """``<|begin_of_text|>``, each turn as ``<|start_header_id|>{role}<|end_header_id|>\\n\\n{text}<|eot_id|>``, and the
    header of the assistant's turn to come.

    As ``ChatFormat`` in llama/tokenizer.py of Meta's repository for Llama 3 writes it (every text is stripped), and
    https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-3/.
    """
    parts = [_llama_3_header(turn["role"]) + turn["content"].strip() + "<|eot_id|>" for turn in turns]
    return "".join(["<|begin_of_text|>", *parts, _llama_3_header("assistant")])


def mistral(turns: Sequence[Turn]) -> str:
    """``<s>[INST] {user} [/INST] {answer}</s>[INST] {user} [/INST]``, the system prompt before the first user's text.

    As Mistral documents it for its 7B and Mixtral instruct models, also with ``System Prompt + Instruction`` in
    the first turn: https://docs.mistral.ai/usage/guardrailing and, under "Tokenizer V1",
    https://docs.mistral.ai/cookbook/concept-deep-dive-tokenization-templates. The blank line after the
    system prompt is mistral-common's.
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
    """The prompt of a checked chat body in the format of that name.

    Raises:
        UnsupportedField: tools, which none of the formats has a place for.
        InvalidRequest: turns that the format cannot put in order.
    """
    if "tools" in body:
        raise UnsupportedField(f"tools: the prompt format {name} has no place for them", param="tools")
    for index, message in enumerate(body["messages"]):
        if message["role"] == "tool" or message.get("tool_calls"):
            path = f"{_PATH}.{index}"
            raise UnsupportedField(f"{path}: the prompt format {name} has no place for tool calls", param=path)
    return FORMATS[name](plain(body["messages"]))


def plain(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Checked messages, each with one text as content: the engine too joins parts by newlines."""
    return [{**message, "content": _text(message.get("content", ""))} for message in messages]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _llama_3_header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


def _alternating(turns: Sequence[Turn], name: str) -> tuple[str | None, Sequence[Turn]]:
    """The system prompt, if there is one, and the turns after it: user, assistant, user, ..., user."""
    system, rest = (turns[0]["content"], turns[1:]) if turns[0]["role"] == "system" else (None, turns)
    offset = len(turns) - len(rest)
    for index, turn in enumerate(rest):
        expected = "assistant" if index % 2 else "user"
        if turn["role"] != expected:
            path = f"{_PATH}.{index + offset}.role"
            order = _ORDER.format(name)
            raise InvalidRequest(f"{path}: found {turn['role']!r}, allowed {expected!r}; {order}", param=path)
    if not len(rest) % 2:
        raise InvalidRequest(f"{_PATH}: found no user's turn at the end; {_ORDER.format(name)}", param=_PATH)
    return system, rest
