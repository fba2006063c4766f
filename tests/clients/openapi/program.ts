// Types of openapi-typescript with openapi-fetch: list adapters, chat, stream, and show a version.

import createClient from "openapi-fetch";

import type { components, paths } from "./schema.d.ts";

type Version = components["schemas"]["Version"];

declare const process: { env: Record<string, string> };

const { TENORA_URL: url = "", TENORA_KEY: key = "", TENORA_MODEL: model = "" } = process.env;
const client = createClient<paths, "application/json">({
  baseUrl: url.replace(/\/v1$/, ""),
  headers: { authorization: `Bearer ${key}` },
});

function check(condition: boolean, claim: string): asserts condition {
  if (!condition) throw new Error(claim);
}

const adapters = await client.GET("/v1/adapters", { params: { query: { limit: 10 } } });
check(adapters.data !== undefined, "the list of adapters has no error");
const adapter = adapters.data.data[0];
check(adapter?.name === model, "the list has the demo's adapter");
const number = adapter.versions[0];
check(number !== undefined, "the adapter has a version");

const shown = await client.GET("/v1/adapters/{adapter}/versions/{number}", {
  params: { path: { adapter: adapter.name, number } },
});
check(shown.data !== undefined, "the version is shown");
const version: Version = shown.data;
check(version.state === "ready" && version.provenance.base?.name !== undefined, "the version is ready");

const chat = await client.POST("/v1/chat/completions", {
  body: { model, messages: [{ role: "user", content: "What does sugar cost?" }], max_tokens: 8 },
});
check(chat.data !== undefined, "the chat has no error");
const message = chat.data.choices[0]?.message;
check(message?.role === "assistant" && Boolean(message.content), "the chat has an answer");
check(chat.data.usage.completion_tokens <= 8, "the answer has its maximum of tokens");

const stream = await client.POST("/v1/completions", {
  body: { model, prompt: "Sugar", max_tokens: 4, stream: true },
  parseAs: "text",
});
check(stream.data?.trimEnd().endsWith("data: [DONE]") === true, "the stream ends");

const usage = await client.GET("/v1/usage", { params: { query: { format: "csv" } }, parseAs: "text" });
check(usage.data?.startsWith("adapter,requests,") === true, "the report is a table");

const absent = await client.GET("/v1/adapters/{adapter}", { params: { path: { adapter: "absent" } } });
check(absent.error?.error.code === "not_found", "the error has its envelope");
