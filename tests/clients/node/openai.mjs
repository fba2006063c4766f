// openai's SDK: calls, the helpers that stream and parse, and messages sent back as the SDK made them.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const model = process.env.TENORA_MODEL;
const client = new OpenAI({ baseURL: process.env.TENORA_URL, apiKey: process.env.TENORA_KEY, maxRetries: 0 });
const question = { role: "user", content: "What does sugar cost?" };
const tools = [zodFunction({ name: "price_of", parameters: z.object({ item: z.enum(["sugar", "salt"]) }) })];
const forced = { model, tools, tool_choice: { type: "function", function: { name: "price_of" } }, max_tokens: 60 };

async function loop(message) {
  assert.equal(message.tool_calls.length, 1);
  const messages = [question, message];
  for (const call of message.tool_calls) {
    assert.ok(["sugar", "salt"].includes(JSON.parse(call.function.arguments).item));
    messages.push({ role: "tool", tool_call_id: call.id, content: "two euros" });
  }
  for (let turn = 0; turn < 2; turn++) {
    const answer = await client.chat.completions.create({ model, messages, tools, max_tokens: 20 });
    messages.push(answer.choices[0].message, { role: "user", content: "And salt?" });
  }
}

await loop((await client.chat.completions.create({ ...forced, messages: [question] })).choices[0].message);
await loop((await client.chat.completions.parse({ ...forced, messages: [question] })).choices[0].message);
const stream = client.chat.completions.stream({ ...forced, messages: [question] });
await loop((await stream.finalChatCompletion()).choices[0].message);

const response_format = zodResponseFormat(z.object({ price: z.enum(["raise", "lower"]) }), "advice");
const messages = [{ role: "user", content: "Raise or lower the price?" }];
for (let turn = 0; turn < 2; turn++) {
  const advised = await client.chat.completions.parse({ model, messages, response_format, max_tokens: 40 });
  assert.ok(["raise", "lower"].includes(advised.choices[0].message.parsed.price));
  messages.push(advised.choices[0].message, { role: "user", content: "And now?" });
}

// The same by Responses. The items of an answer are sent back as they came.
const item = z.object({ item: z.enum(["sugar", "salt"]) });
const functions = [zodResponsesFunction({ name: "price_of", parameters: item })];
const called = { model, tools: functions, tool_choice: { type: "function", name: "price_of" }, max_output_tokens: 60 };

async function respond(response) {
  const calls = response.output.filter((one) => one.type === "function_call");
  assert.equal(calls.length, 1);
  assert.ok(["sugar", "salt"].includes(JSON.parse(calls[0].arguments).item));
  const input = [question, ...response.output];
  input.push({ type: "function_call_output", call_id: calls[0].call_id, output: "two euros" });
  for (let turn = 0; turn < 2; turn++) {
    const answer = await client.responses.create({ model, input, tools: functions, max_output_tokens: 20 });
    assert.ok(["completed", "incomplete"].includes(answer.status));
    assert.equal(answer.store, false);
    input.push(...answer.output, { role: "user", content: "And salt?" });
  }
}

await respond(await client.responses.create({ ...called, input: [question] }));
await respond(await client.responses.parse({ ...called, input: [question] }));
await respond(await client.responses.stream({ ...called, input: [question] }).finalResponse());

const text = { format: zodTextFormat(z.object({ price: z.enum(["raise", "lower"]) }), "advice") };
const advice = await client.responses.parse({ model, input: "Raise or lower the price?", text, max_output_tokens: 40 });
assert.ok(["raise", "lower"].includes(advice.output_parsed.price));
