import { useMutation, useQuery } from "@tanstack/react-query";
import { type Schemas, api, body } from "../../api/client";
import { Badge } from "../../components/badge";
import { ErrorNotice } from "../../components/error-notice";
import { Figures } from "../../components/canary-table";
import { NONE } from "../../lib/format";
import { useMe } from "../../session";
import type { AliasPath } from "./aliases";

const POLL_MS = 5_000;

/** Canary of an alias with its figures. It refreshes while the canary runs. */
export function AliasCanary(path: AliasPath) {
  const query = useQuery({
    queryKey: ["alias", path],
    queryFn: () => body(api.GET("/admin/tenants/{tenant}/adapters/{adapter}/aliases/{alias}", { params: { path } })),
    refetchInterval: ({ state }) => (state.data?.canary?.state === "running" ? POLL_MS : false),
  });
  const canary = query.data?.canary;
  if (query.isPending) return "…";
  if (canary == null) return NONE;
  return <CanaryState path={path} canary={canary} />;
}

function CanaryState({ path, canary }: { path: AliasPath; canary: Schemas["Canary"] }) {
  const { can } = useMe();
  const cancel = useMutation({
    mutationFn: () =>
      api.DELETE("/admin/tenants/{tenant}/adapters/{adapter}/aliases/{alias}/canary", { params: { path } }),
  });
  return (
    <>
      <Badge state={canary.state} /> version {canary.candidate.version} against {canary.baseline.version}, step{" "}
      {canary.step + 1} of {canary.policy.steps?.length ?? 1}
      <div className="quiet">
        <div>
          new: <Figures figures={canary.candidate} />
        </div>
        <div>
          old: <Figures figures={canary.baseline} />
        </div>
        {canary.reason !== null && <div>{canary.reason}</div>}
      </div>
      {canary.state === "running" && can("adapters:write") && (
        <button
          type="button"
          className="small"
          aria-label={`Cancel the canary of ${path.alias}`}
          disabled={cancel.isPending}
          onClick={() => cancel.mutate()}
        >
          Cancel the canary
        </button>
      )}
      {cancel.error !== null && <ErrorNotice error={cancel.error} />}
    </>
  );
}
