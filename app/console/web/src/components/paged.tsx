import type { InfiniteData, UseInfiniteQueryResult } from "@tanstack/react-query";
import { useInfiniteQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { ErrorNotice } from "./error-notice";
import { Loaded } from "./loaded";

export interface PageOf<T> {
  data: T[];
  next_cursor: string | null;
}

type Pages<T> = UseInfiniteQueryResult<InfiniteData<PageOf<T>>>;

/** Query a list page by page, by the cursor of the page before. */
export function usePages<T>(
  key: readonly unknown[],
  fetchPage: (cursor: string | undefined) => Promise<PageOf<T>>,
  refetchInterval: number | false = false,
): Pages<T> {
  return useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam }) => fetchPage(pageParam),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    refetchInterval,
  });
}

/** Show the rows of a list, and a button for the next page if there is one. */
export function Paged<T>({ query, children }: { query: Pages<T>; children: (rows: T[]) => ReactNode }) {
  return (
    <Loaded query={query}>
      {(data) => (
        <>
          {children(data.pages.flatMap((page) => page.data))}
          {query.isFetchNextPageError && <ErrorNotice error={query.error} />}
          {query.hasNextPage && (
            <p>
              <button type="button" disabled={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
                {query.isFetchingNextPage ? "Loading…" : "Show more"}
              </button>
            </p>
          )}
        </>
      )}
    </Loaded>
  );
}
