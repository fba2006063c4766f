import type { QueryClient } from "@tanstack/react-query";

/** Query key of the session. Its data is null when there is none. */
export const ME = ["me"] as const;

/** Whether a query is not that of the session. */
export function isData({ queryKey }: { queryKey: readonly unknown[] }): boolean {
  return queryKey[0] !== ME[0];
}

/** Show the sign-in page, and forget all data: the next session may be another tenant's. */
export function forgetSession(client: QueryClient): void {
  client.setQueryData(ME, null);
  client.removeQueries({ predicate: isData });
}
