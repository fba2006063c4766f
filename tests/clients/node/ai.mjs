// The AI SDK, by its provider for OpenAI's chats and by that for servers like it: steps of a tool loop, whole and
// streamed, a second turn, and structured output.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const connection = { baseURL: process.env.TENORA_URL, apiKey: process.env.TENORA_KEY };
const models = [
  createOpenAI(connection).chat(process.env.TENORA_MODEL),
  createOpenAICompatible({ ...connection, name: "tenora", supportsStructuredOutputs: true, includeUsage: true })(
    process.env.TENORA_MODEL,
  ),
];
const tools = {
  price_of: tool({
    description: "The price of an item.",
    inputSchema: z.object({ item: z.enum(["sugar", "salt"]) }),
    execute: async ({ item }) => `${item} costs two euros`,
  }),
};
const prepareStep = ({ stepNumber }) => ({
  toolChoice: stepNumber === 0 ? { type: "tool", toolName: "price_of" } : "auto",
});

for (const model of models) {
  const asked = { model, tools, prepareStep, stopWhen: stepCountIs(2), maxOutputTokens: 60, maxRetries: 0 };
  const messages = [{ role: "user", content: "What does sugar cost?" }];
  const whole = await generateText({ ...asked, messages });
  assert.equal(whole.steps.length, 2);
  assert.match(whole.steps[0].toolResults[0].output, /costs two euros/);
  const said = [...messages, ...whole.response.messages, { role: "user", content: "And salt?" }];
  await generateText({ ...asked, messages: said });

  const failures = [];
  const streamed = streamText({ ...asked, messages, onError: ({ error }) => failures.push(error) });
  assert.equal((await streamed.steps).length, 2);
  assert.match((await streamed.steps)[0].toolResults[0].output, /costs two euros/);
  assert.deepEqual(failures, []);

  const output = Output.object({ schema: z.object({ price: z.enum(["raise", "lower"]) }) });
  const advised = { model, output, maxOutputTokens: 40, maxRetries: 0 };
  const history = [{ role: "user", content: "Raise or lower the price?" }];
  const first = await generateText({ ...advised, messages: history });
  assert.ok(["raise", "lower"].includes(first.output.price));
  const rest = [...first.response.messages, { role: "user", content: "And now?" }];
  const second = await generateText({ ...advised, messages: [...history, ...rest] });
  assert.ok(["raise", "lower"].includes(second.output.price));
}
