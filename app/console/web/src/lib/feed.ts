import { CONSOLE_HEADERS, type Schemas } from "../api/client";
import { ApiError, errorOf } from "../api/error";
import { serverEvents } from "./sse";

export type FeedEvent = Schemas["Event"];

interface Listener {
  onEvent: (event: FeedEvent) => void;
  onSignedOut: () => void;
}

const RETRY_MS = 2_000;
const REFUSED_RETRY_MS = 30_000;

/**
 * Listen to an event feed. One tab of the browser reads it and passes the events on to the others: a browser has only
 * six connections to a server, and a tenant only a few feeds. When that tab closes, another one takes over.
 *
 * Returns a function that ends the listening.
 */
export function listen(url: string, listener: Listener): () => void {
  const stop = new AbortController();
  const channel = new BroadcastChannel(`tenora ${url}`);
  channel.onmessage = ({ data }: MessageEvent<FeedEvent>) => listener.onEvent(data);
  const receive = (event: FeedEvent) => {
    channel.postMessage(event);
    listener.onEvent(event);
  };
  navigator.locks
    .request(`tenora ${url}`, { signal: stop.signal }, () => read(url, receive, listener.onSignedOut, stop.signal))
    .catch(() => undefined);
  return () => {
    stop.abort();
    channel.close();
  };
}

async function read(url: string, receive: (event: FeedEvent) => void, onSignedOut: () => void, signal: AbortSignal) {
  let last: string | null = null;
  while (!signal.aborted) {
    let pauseMs = RETRY_MS;
    try {
      const headers: Record<string, string> =
        last === null ? CONSOLE_HEADERS : { ...CONSOLE_HEADERS, "last-event-id": last };
      const response = await fetch(url, { headers, signal });
      if (!response.ok || response.body === null) throw await errorOf(response);
      for await (const event of serverEvents(response.body)) {
        last = event.id ?? last;
        if (event.type !== "end") receive(JSON.parse(event.data) as FeedEvent);
      }
    } catch (error) {
      if (error instanceof ApiError && error.isSignedOut) return onSignedOut();
      if (error instanceof ApiError) pauseMs = REFUSED_RETRY_MS;
    }
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
}
