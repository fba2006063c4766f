"""openai-agents on its default model class, for Responses: a tool, a second run, a stream and an output type."""

import asyncio
import os
from typing import Any, Literal

from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel

MODEL = os.environ["TENORA_MODEL"]
QUESTION = "What does sugar cost?"


class Advice(BaseModel):
    """Advice on a price."""

    price: Literal["raise", "lower"]


@function_tool
def price_of(item: Literal["sugar", "salt"]) -> str:
    """The price of an item."""
    return f"{item} costs two euros"


async def main() -> None:
    client = AsyncOpenAI(base_url=os.environ["TENORA_URL"], api_key=os.environ["TENORA_KEY"], max_retries=0)
    set_default_openai_client(client, use_for_tracing=False)
    set_tracing_disabled(True)

    # The agent forces the tool once. After its call the model chooses.
    settings = ModelSettings(tool_choice="price_of", max_tokens=60)
    agent: Any = Agent(name="prices", instructions="Be brief.", model=MODEL, tools=[price_of], model_settings=settings)
    first = await Runner.run(agent, QUESTION)
    outputs = [item for item in first.to_input_list() if item.get("type") == "function_call_output"]
    assert "two euros" in str(outputs[0]["output"])
    assert first.final_output is not None
    items: list[Any] = [*first.to_input_list(), {"role": "user", "content": "And salt?"}]
    second = await Runner.run(agent, items)
    assert len(second.to_input_list()) > len(items)
    assert second.context_wrapper.usage.input_tokens > 0

    streamed = Runner.run_streamed(agent, QUESTION)
    kinds = [event.type async for event in streamed.stream_events()]
    assert "raw_response_event" in kinds
    assert streamed.final_output is not None

    adviser: Any = Agent(name="adviser", model=MODEL, output_type=Advice, model_settings=ModelSettings(max_tokens=60))
    advised = await Runner.run(adviser, "Raise or lower the price?")
    assert advised.final_output.price in ("raise", "lower")


if __name__ == "__main__":
    asyncio.run(main())
