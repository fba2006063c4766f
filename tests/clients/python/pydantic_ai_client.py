"""pydantic-ai: an agent with a tool, a second run on its history, and both of its structured output modes."""

import os
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, RunContext, ToolOutput
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Advice(BaseModel):
    """Advice on a price."""

    price: Literal["raise", "lower"]


MODEL = OpenAIChatModel(
    os.environ["TENORA_MODEL"],
    provider=OpenAIProvider(base_url=os.environ["TENORA_URL"], api_key=os.environ["TENORA_KEY"]),
)


def forced(tool: str) -> dict[str, Any]:
    """Force the tool by name.

    pydantic-ai itself only requires some tool. The demo's base would then generate extra keys next to the call without
    end.
    """
    return {"extra_body": {"tool_choice": {"type": "function", "function": {"name": tool}}}}


def first_the_tool(context: RunContext[None]) -> Any:
    return {"max_tokens": 60, **(forced("price_of") if context.run_step == 1 else {})}


def price_of(item: Literal["sugar", "salt"]) -> str:
    """The price of an item."""
    return f"{item} costs two euros"


def main() -> None:
    agent = Agent(MODEL, tools=[price_of], model_settings=first_the_tool, retries=0)
    first = agent.run_sync("What does sugar cost?")
    parts = [part for message in first.all_messages() for part in message.parts]
    assert any(isinstance(part, ToolReturnPart) and "two euros" in str(part.content) for part in parts)
    assert agent.run_sync("And salt?", message_history=first.all_messages()).output is not None
    streamed = agent.run_stream_sync("What does sugar cost?")
    assert streamed.get_output() is not None

    for output, settings in ((NativeOutput(Advice), {}), (ToolOutput(Advice, name="advise"), forced("advise"))):
        adviser: Any = Agent(MODEL, output_type=output, model_settings={"max_tokens": 60, **settings}, retries=0)
        advised = adviser.run_sync("Raise or lower the price?")
        assert advised.output.price in ("raise", "lower")
        assert adviser.run_sync("And now?", message_history=advised.all_messages()).output.price in ("raise", "lower")


if __name__ == "__main__":
    main()
