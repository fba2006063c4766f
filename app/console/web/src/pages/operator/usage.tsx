import { type Schemas, api, body } from "../../api/client";
import { Page } from "../../components/page";
import { type UsageQuery, UsageReportView } from "../../components/usage-report";

/** Fetch the usage of all tenants. */
export function fetchAllUsage(query: UsageQuery): Promise<Schemas["UsageReport"]> {
  return body(api.GET("/admin/usage", { params: { query } }));
}

export function AllUsage() {
  return (
    <Page title="Usage and cost" scopes={["admin"]}>
      <UsageReportView
        queryKey={["all"]}
        fetchReport={fetchAllUsage}
        groupings={["tenant", "adapter", "version", "key"]}
        command='tenora generate --model ADAPTER "A question"'
      />
    </Page>
  );
}
