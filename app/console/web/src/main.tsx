import { MutationCache, QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError, UnreachableError } from "./api/error";
import { App } from "./app";
import { SessionGate } from "./session";
import { forgetSession, isData } from "./session-cache";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/components.css";

const RETRIES = 3;

function onError(error: unknown): void {
  if (error instanceof ApiError && error.isSignedOut) forgetSession(client);
}

const client: QueryClient = new QueryClient({
  queryCache: new QueryCache({ onError }),
  mutationCache: new MutationCache({
    onError,
    // A write may change any list, so none stays stale.
    onSuccess: () => client.invalidateQueries({ predicate: isData }),
  }),
  defaultOptions: {
    queries: {
      staleTime: 5_000,
      retry: (failures, error) => failures < RETRIES && isTransient(error),
      retryDelay: (failures, error) => 1000 * (retryAfterS(error) ?? 2 ** failures),
    },
  },
});

function isTransient(error: unknown): boolean {
  return error instanceof UnreachableError || (error instanceof ApiError && error.isTransient);
}

function retryAfterS(error: unknown): number | null {
  return error instanceof ApiError && error.retryAfterS !== null ? Math.min(error.retryAfterS, 10) : null;
}

const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={client}>
        <SessionGate>
          <App />
        </SessionGate>
      </QueryClientProvider>
    </StrictMode>,
  );
}
