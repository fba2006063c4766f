// LangChain with LangGraph: an agent's graph whose tools are run by LangGraph's own node, and structured output.
import assert from "node:assert/strict";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { END, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { ToolNode, toolsCondition } from "@langchain/langgraph/prebuilt";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

// Before a stream it asks a server on the internet for OpenAI's tokenizers, and estimates without them: at once here,
// where it would try for minutes.
const { fetch } = globalThis;
globalThis.fetch = (url, ...rest) =>
  String(url).startsWith("https://tiktoken.pages.dev/")
    ? Promise.reject(new DOMException("no tokenizers here", "AbortError"))
    : fetch(url, ...rest);

const priceOf = tool(async ({ item }) => `${item} costs two euros`, {
  name: "price_of",
  description: "The price of an item.",
  schema: z.object({ item: z.enum(["sugar", "salt"]) }),
});

function agent(model) {
  const call = async ({ messages }) => {
    const first = !messages.some((message) => ToolMessage.isInstance(message));
    const bound = model.bindTools([priceOf], first ? { tool_choice: "price_of" } : {});
    return { messages: [await bound.invoke(messages)] };
  };
  return new StateGraph(MessagesAnnotation)
    .addNode("model", call)
    .addNode("tools", new ToolNode([priceOf]))
    .addEdge(START, "model")
    .addConditionalEdges("model", toolsCondition, { tools: "tools", [END]: END })
    .addEdge("tools", "model")
    .compile();
}

for (const streaming of [false, true]) {
  const model = new ChatOpenAI({
    model: process.env.TENORA_MODEL,
    apiKey: process.env.TENORA_KEY,
    configuration: { baseURL: process.env.TENORA_URL },
    maxTokens: 60,
    maxRetries: 0,
    streaming,
  });
  const { messages } = await agent(model).invoke({ messages: [new HumanMessage("What does sugar cost?")] });
  assert.deepEqual(messages.map((message) => message.type), ["human", "ai", "tool", "ai"]);
  assert.match(messages[2].content, /costs two euros/);
  await agent(model).invoke({ messages: [...messages, new HumanMessage("And salt?")] });

  for (const method of ["jsonSchema", "functionCalling"]) {
    const schema = z.object({ price: z.enum(["raise", "lower"]) });
    const adviser = model.withStructuredOutput(schema, { name: "advice", method, includeRaw: true });
    const history = [new HumanMessage("Raise or lower the price?")];
    const { parsed, raw } = await adviser.invoke(history);
    assert.ok(["raise", "lower"].includes(parsed.price));
    const results = (raw.tool_calls ?? []).map((one) => new ToolMessage({ content: "done", tool_call_id: one.id }));
    const again = await adviser.invoke([...history, raw, ...results, new HumanMessage("And now?")]);
    assert.ok(["raise", "lower"].includes(again.parsed.price));
  }
}
