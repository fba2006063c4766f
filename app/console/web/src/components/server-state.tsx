import { useQuery } from "@tanstack/react-query";
import { api } from "../api/client";
import { ApiError } from "../api/error";
import { Badge } from "./badge";

const POLL_MS = 10_000;

/** Readiness of the server. While its engine restarts, the pages show what they loaded before. */
export function ServerState() {
  const query = useQuery({ queryKey: ["ready"], queryFn: fetchState, refetchInterval: POLL_MS, retry: false });
  const state = query.error !== null ? "no answer" : (query.data ?? "checking");
  return (
    <p role="status" className="server-state">
      Server <Badge state={state} />
      {state === "not_ready" && <span> The engine is starting. What you see may be old.</span>}
    </p>
  );
}

async function fetchState(): Promise<string> {
  try {
    return (await api.GET("/health/ready")).data?.status ?? "checking";
  } catch (error) {
    if (error instanceof ApiError && error.isTransient) return "not_ready";
    throw error;
  }
}
