import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { time } from "../lib/format";
import { ErrorNotice } from "./error-notice";
import { Notice } from "./notice";

interface Props<T> {
  query: Pick<UseQueryResult<T>, "data" | "error" | "isPending" | "dataUpdatedAt" | "refetch">;
  children: (data: T) => ReactNode;
}

/** Show a query: a placeholder while it loads, its error, or its data. After a failed refresh the data stays, marked as old. */
export function Loaded<T>({ query, children }: Props<T>) {
  if (query.data === undefined) {
    return query.error === null ? (
      <Loading />
    ) : (
      <ErrorNotice error={query.error} onRetry={() => void query.refetch()} />
    );
  }
  return (
    <>
      {query.error !== null && (
        <Notice tone="warning" title={`As of ${time(query.dataUpdatedAt / 1000)}`}>
          <p>{query.error.message} The page refreshes by itself.</p>
        </Notice>
      )}
      {children(query.data)}
    </>
  );
}

export function Loading() {
  return (
    <div className="loading" role="status">
      <span className="visually-hidden">Loading</span>
      <span className="skeleton" />
      <span className="skeleton" />
      <span className="skeleton" />
    </div>
  );
}
