import { useInfiniteQuery } from "@tanstack/react-query";
import { api, body } from "../api/client";
import { BatchTable } from "./batch-table";
import { Empty } from "./empty";
import { Loaded } from "./loaded";

const POLL_MS = 5_000;

/** Batches of all tenants, or of one, as a platform key sees them: without prompts and answers. */
export function PlatformBatches({ tenant }: { tenant?: string }) {
  const query = useInfiniteQuery({
    queryKey: ["platform-batches", tenant],
    queryFn: ({ pageParam }) =>
      body(api.GET("/admin/batches", { params: { query: { after: pageParam, limit: 50, tenant } } })),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => (page.has_more ? (page.last_id ?? undefined) : undefined),
    refetchInterval: POLL_MS,
  });
  return (
    <>
      <Loaded query={query}>
        {({ pages }) => {
          const batches = pages.flatMap((page) => page.data);
          return batches.length === 0 ? (
            <Empty title="No batches" command="tenora batch run requests.jsonl --model ADAPTER">
              <p>Tenants create batches with a key that has the scope batch.</p>
            </Empty>
          ) : (
            <BatchTable batches={batches} columns={[{ head: "Tenant", cell: (batch) => batch.tenant }]} />
          );
        }}
      </Loaded>
      {query.hasNextPage && (
        <p>
          <button type="button" onClick={() => void query.fetchNextPage()}>
            Show more
          </button>
        </p>
      )}
    </>
  );
}
