"""LangChain with LangGraph: an agent graph whose tools run in LangGraph's own node, and structured output."""

import os
from typing import Any, Literal

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel


class Advice(BaseModel):
    """Advice on a price."""

    price: Literal["raise", "lower"]


@tool
def price_of(item: Literal["sugar", "salt"]) -> str:
    """The price of an item."""
    return f"{item} costs two euros"


CONNECTION: dict[str, Any] = {
    "model": os.environ["TENORA_MODEL"],
    "base_url": os.environ["TENORA_URL"],
    "api_key": os.environ["TENORA_KEY"],
    "max_retries": 0,
}


def agent(model: ChatOpenAI) -> Any:
    """Build a graph that calls the tool first and then answers."""

    def call(state: MessagesState) -> dict[str, Any]:
        first = not any(isinstance(message, ToolMessage) for message in state["messages"])
        # Strict mode is required: without it the demo's base would generate extra keys without end.
        bound = model.bind_tools([price_of], tool_choice="price_of" if first else None, strict=True)
        return {"messages": [bound.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", call)
    graph.add_node("tools", ToolNode([price_of]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition, {"tools": "tools", END: END})
    graph.add_edge("tools", "model")
    return graph.compile()


def main() -> None:
    for streaming in (False, True):
        model = ChatOpenAI(**CONNECTION, max_completion_tokens=60, streaming=streaming, stream_usage=streaming)
        messages = agent(model).invoke({"messages": [HumanMessage("What does sugar cost?")]})["messages"]
        kinds = [type(message).__name__ for message in messages]
        assert kinds == ["HumanMessage", "AIMessage", "ToolMessage", "AIMessage"], kinds
        assert "costs two euros" in str(messages[2].content)
        again = agent(model).invoke({"messages": [*messages, HumanMessage("And salt?")]})["messages"]
        assert isinstance(again[-1], AIMessage)

        for method in ("json_schema", "function_calling"):
            advised = model.with_structured_output(Advice, method=method, include_raw=True, strict=True)
            history: list[Any] = [HumanMessage("Raise or lower the price?")]
            first = advised.invoke(history)
            assert first["parsed"].price in ("raise", "lower"), first
            history.append(first["raw"])
            history += [ToolMessage("done", tool_call_id=call["id"]) for call in first["raw"].tool_calls]
            assert advised.invoke([*history, HumanMessage("And now?")])["parsed"].price in ("raise", "lower")
    # The client sends all prompts of a batch in one request.
    texts = OpenAI(**CONNECTION, max_tokens=2).generate(["sugar", "salt", "tea"])
    assert len(texts.generations) == 3


if __name__ == "__main__":
    main()
