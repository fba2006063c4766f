import { CONSOLE_HEADERS } from "../../api/client";
import { UnreachableError, errorFrom, errorOf } from "../../api/error";
import { serverEvents } from "../../lib/sse";
import type { Actor } from "./actor";

/** Settings that all columns share. Null leaves a setting to the server. */
export interface Settings {
  system: string;
  prompt: string;
  temperature: number | null;
  seed: number | null;
  maxTokens: number;
}

/** Answer of one model, while it arrives and after. */
export interface Answer {
  state: "waiting" | "streaming" | "done" | "stopped" | "failed";
  text: string;
  /** From the request to the first text, by this browser's clock. */
  ttftMs: number | null;
  loadMs: number | null;
  promptTokens: number | null;
  outputTokens: number | null;
  tokensPerSecond: number | null;
  /** Version that answered; null: the base. */
  version: string | null;
  requestId: string | null;
  error: Error | null;
}

export const WAITING: Answer = {
  state: "waiting",
  text: "",
  ttftMs: null,
  loadMs: null,
  promptTokens: null,
  outputTokens: null,
  tokensPerSecond: null,
  version: null,
  requestId: null,
  error: null,
};

/** With fewer chunks the rate is mostly noise. */
const CHUNKS_FOR_RATE = 8;

/** Body of the request, as an application would send it. */
export function chatBody(model: string, settings: Settings) {
  return {
    model,
    messages: [
      ...(settings.system === "" ? [] : [{ role: "system" as const, content: settings.system }]),
      { role: "user" as const, content: settings.prompt },
    ],
    max_tokens: settings.maxTokens,
    ...(settings.temperature === null ? {} : { temperature: settings.temperature }),
    ...(settings.seed === null ? {} : { seed: settings.seed }),
  };
}

/** Ask a model, and report the answer as it grows. Never rejects: an error is part of the answer. */
export async function ask(
  model: string,
  settings: Settings,
  actor: Actor,
  onAnswer: (answer: Answer) => void,
  signal: AbortSignal,
): Promise<Answer> {
  let answer = WAITING;
  const update = (change: Partial<Answer>) => {
    answer = { ...answer, ...change };
    onAnswer(answer);
  };
  try {
    for await (const change of streamed(model, settings, actor, signal)) update(change(answer));
    update({ state: "done" });
  } catch (error) {
    if (signal.aborted) update({ state: "stopped" });
    else update({ state: "failed", error: error instanceof TypeError ? new UnreachableError() : (error as Error) });
  }
  return answer;
}

type Change = (answer: Answer) => Partial<Answer>;

async function* streamed(model: string, settings: Settings, actor: Actor, signal: AbortSignal): AsyncGenerator<Change> {
  const began = performance.now();
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { ...CONSOLE_HEADERS, ...actor, "content-type": "application/json" },
    body: JSON.stringify({ ...chatBody(model, settings), stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok || response.body === null) throw await errorOf(response);
  const header = (name: string) => response.headers.get(name);
  const load = header("x-tenora-load-ms");
  yield () => ({
    version: header("x-tenora-adapter"),
    loadMs: load === null ? null : Number(load),
    requestId: header("x-request-id"),
  });
  const clock = new Clock(began);
  for await (const event of serverEvents(response.body)) {
    if (event.data === "[DONE]") break;
    const chunk = JSON.parse(event.data) as Chunk;
    if (chunk.error !== undefined) throw errorFrom(response.status, event.data, header);
    const text = chunk.choices?.[0]?.delta?.content;
    if (text) {
      clock.tick();
      yield (answer) => ({ state: "streaming", text: answer.text + text, ttftMs: clock.ttftMs });
    }
    const usage = chunk.usage;
    if (usage != null) {
      yield () => ({
        promptTokens: usage.prompt_tokens,
        outputTokens: usage.completion_tokens,
        tokensPerSecond: clock.rate(usage.completion_tokens),
      });
    }
  }
}

interface Chunk {
  error?: unknown;
  choices?: { delta?: { content?: string | null } }[];
  usage?: { prompt_tokens: number; completion_tokens: number } | null;
}

/** Times of the chunks of one answer. */
class Clock {
  private chunks = 0;
  private first = 0;
  private last = 0;

  constructor(private readonly began: number) {}

  tick(): void {
    this.last = performance.now();
    if (this.chunks === 0) this.first = this.last;
    this.chunks += 1;
  }

  get ttftMs(): number {
    return this.first - this.began;
  }

  rate(tokens: number): number | null {
    const elapsedMs = this.last - this.first;
    return this.chunks < CHUNKS_FOR_RATE || elapsedMs <= 0 ? null : ((tokens - 1) / elapsedMs) * 1000;
  }
}
