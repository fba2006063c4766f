"""llama-index: a tool call and its result through the methods of its model class, and structured output."""

import os
from typing import Any, Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.core.tools.calling import call_tool_with_selection
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Advice(BaseModel):
    """Advice on a price."""

    price: Literal["raise", "lower"]


def price_of(item: Literal["sugar", "salt"]) -> str:
    """The price of an item."""
    return f"{item} costs two euros"


def loop(model: Any, tool: FunctionTool, question: ChatMessage, response: Any) -> None:
    messages = [question, response.message]
    for selection in model.get_tool_calls_from_response(response):
        result = call_tool_with_selection(selection, [tool])
        assert "two euros" in result.content
        named = {"tool_call_id": selection.tool_id, "name": selection.tool_name}
        messages.append(ChatMessage(role="tool", content=result.content, additional_kwargs=named))
    assert len(messages) > 2
    for _ in range(2):
        again = model.chat_with_tools([tool], chat_history=messages)
        messages += [again.message, ChatMessage(role="user", content="And salt?")]


def main() -> None:
    model = OpenAILike(
        model=os.environ["TENORA_MODEL"],
        api_base=os.environ["TENORA_URL"],
        api_key=os.environ["TENORA_KEY"],
        context_window=2048,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        max_tokens=60,
        max_retries=0,
    )
    tool = FunctionTool.from_defaults(price_of)
    question = ChatMessage(role="user", content="What does sugar cost?")
    loop(model, tool, question, model.chat_with_tools([tool], chat_history=[question], tool_choice="price_of"))
    streamed = model.stream_chat_with_tools([tool], chat_history=[question], tool_choice="price_of")
    loop(model, tool, question, list(streamed)[-1])

    adviser = model.as_structured_llm(Advice)
    messages = [ChatMessage(role="user", content="Raise or lower the price?")]
    for _ in range(2):
        advised = adviser.chat(messages)
        assert advised.raw.price in ("raise", "lower")
        messages += [advised.message, ChatMessage(role="user", content="And now?")]


if __name__ == "__main__":
    main()
