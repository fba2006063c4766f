// The AI SDK, by its providers for OpenAI's chats, for servers like it, and by the default factory, which posts to
// /v1/responses: steps of a tool loop, whole and streamed, a second turn, and structured output.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const connection = { baseURL: process.env.TENORA_URL, apiKey: process.env.TENORA_KEY };
const responses = createOpenAI(connection)(process.env.TENORA_MODEL);
const models = [
  responses,
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

// The server keeps no items. Without this option the SDK would refer to them instead of sending them.
const providerOptions = { openai: { store: false } };

for (const model of models) {
  const asked = { model, tools, prepareStep, stopWhen: stepCountIs(2), maxOutputTokens: 60, maxRetries: 0, providerOptions };
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
  const advised = { model, output, maxOutputTokens: 40, maxRetries: 0, providerOptions };
  const history = [{ role: "user", content: "Raise or lower the price?" }];
  const first = await generateText({ ...advised, messages: history });
  assert.ok(["raise", "lower"].includes(first.output.price));
  const rest = [...first.response.messages, { role: "user", content: "And now?" }];
  const second = await generateText({ ...advised, messages: [...history, ...rest] });
  assert.ok(["raise", "lower"].includes(second.output.price));
}

// Without the option the second turn is refused, and the user reads the way out.
const question = [{ role: "user", content: "What does sugar cost?" }];
const plain = { model: responses, maxOutputTokens: 10, maxRetries: 0 };
const turn = await generateText({ ...plain, messages: question });
const history = [...question, ...turn.response.messages, { role: "user", content: "And salt?" }];
await assert.rejects(generateText({ ...plain, messages: history }), (error) => {
  assert.match(error.message, /item_reference/);
  assert.match(error.message, /providerOptions\.openai\.store = false/);
  return true;
});
assert.ok(turn.usage.inputTokens > 0 && turn.usage.outputTokens > 0);
