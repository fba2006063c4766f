import createClient, { type Middleware, defaultPathSerializer } from "openapi-fetch";
import { ownPath } from "../lib/own-paths";
import { UnreachableError, errorOf } from "./error";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

/** The session's cookie counts only together with this header. */
export const CONSOLE_HEADERS = { "x-tenora-console": "1" } as const;

const outcome: Middleware = {
  async onResponse({ response }) {
    if (!response.ok) throw await errorOf(response);
    return response;
  },
  onError({ error }) {
    return error instanceof DOMException && error.name === "AbortError" ? error : new UnreachableError();
  },
};

/** Client of the HTTP interface. A call that fails rejects with ApiError or UnreachableError. */
export const api = createClient<paths, "application/json">({
  credentials: "same-origin",
  headers: CONSOLE_HEADERS,
  pathSerializer: (path, params) => ownPath(defaultPathSerializer(path, params)),
});
api.use(outcome);

/** Return the body of a successful answer. */
export async function body<T>(call: Promise<{ data?: T }>): Promise<NonNullable<T>> {
  return (await call).data as NonNullable<T>;
}
