import { type Schemas, api, body } from "../../api/client";
import { Page } from "../../components/page";
import { type UsageQuery, UsageReportView } from "../../components/usage-report";
import { useParam } from "../../lib/params";
import { useMe } from "../../session";

/** Return the function that fetches the usage of a tenant, by its own key or a platform key. */
export function fetchUsage(
  isPlatform: boolean,
  tenant: string,
): (query: UsageQuery) => Promise<Schemas["UsageReport"]> {
  return (query) =>
    isPlatform
      ? body(api.GET("/admin/usage", { params: { query: { ...query, tenant } } }))
      : body(api.GET("/v1/usage", { params: { query } }));
}

export function Usage() {
  const tenant = useParam("tenant");
  const { isPlatform } = useMe();
  return (
    <Page title="Usage" scopes={["usage:read"]}>
      <UsageReportView
        queryKey={[tenant]}
        fetchReport={fetchUsage(isPlatform, tenant)}
        groupings={["adapter", "version", "key"]}
        command='tenora generate --model ADAPTER "A question"'
      />
    </Page>
  );
}
