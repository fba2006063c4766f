import { useQuery } from "@tanstack/react-query";
import { api, body } from "../../api/client";
import { NONE, money } from "../../lib/format";
import { useParam } from "../../lib/params";
import { useMe } from "../../session";
import type { Answer } from "./request";

/** A request appears in the usage about a second after its end. */
const POLL_MS = 1_000;
const ATTEMPTS = 10;
/** Newest requests that are searched: those of the other columns, and of other clients. */
const NEWEST = 50;

/** Cost of an answer, once its usage is recorded. It needs the scope `usage:read`. */
export function useCost(answer: Answer): string {
  const { can, isPlatform, server } = useMe();
  const tenant = useParam("tenant");
  const id = answer.requestId;
  const query = useQuery({
    queryKey: ["cost", id],
    queryFn: async () => {
      const { data } = isPlatform
        ? await body(api.GET("/admin/requests", { params: { query: { tenant, limit: NEWEST } } }))
        : await body(api.GET("/v1/requests", { params: { query: { limit: NEWEST } } }));
      return data.find((request) => request.id === id)?.cost ?? null;
    },
    enabled: answer.state === "done" && id !== null && can("usage:read"),
    refetchInterval: ({ state }) => (state.data == null && state.dataUpdateCount < ATTEMPTS ? POLL_MS : false),
  });
  return query.data == null ? NONE : money(query.data, server.currency);
}
