import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, createContext, use, useEffect, useState } from "react";
import { type FeedEvent, listen } from "./lib/feed";
import { useMe } from "./session";
import { forgetSession, isData } from "./session-cache";

const KEPT = 500;
/** Many events in a row refresh the pages once. */
const REFRESH_MS = 1_000;

const EventsContext = createContext<readonly FeedEvent[]>([]);

/** Events since the page was opened, newest first. */
export function useEvents(): readonly FeedEvent[] {
  return use(EventsContext);
}

/** Read the event feed that the key may read, and refresh the pages when the registry has changed. */
export function EventsProvider({ children }: { children: ReactNode }) {
  const { can, isPlatform } = useMe();
  const [events, setEvents] = useState<readonly FeedEvent[]>([]);
  const client = useQueryClient();
  const url = feedUrl(isPlatform, can);

  useEffect(() => {
    if (url === null) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const refresh = () => {
      timer = undefined;
      void client.invalidateQueries({ predicate: isData });
    };
    const stop = listen(url, {
      onEvent: (event) => {
        setEvents((before) => [event, ...before].slice(0, KEPT));
        // Events of the engine have no id, and change nothing in the registry.
        if (event.id !== null) timer ??= setTimeout(refresh, REFRESH_MS);
      },
      onSignedOut: () => forgetSession(client),
    });
    return () => {
      clearTimeout(timer);
      stop();
    };
  }, [url, client]);

  return <EventsContext value={events}>{children}</EventsContext>;
}

function feedUrl(isPlatform: boolean, can: (scope: string) => boolean): string | null {
  if (isPlatform) return can("admin") ? "/admin/events" : null;
  return can("adapters:read") ? "/v1/events" : null;
}
