import { api, body } from "../../api/client";
import { Page } from "../../components/page";
import { RequestList } from "../../components/request-list";
import { type UsageCalls, UsageReportView } from "../../components/usage-report";

/** Calls on the usage of all tenants. */
export const ALL_USAGE: UsageCalls = {
  queryKey: ["all"],
  report: (query) => body(api.GET("/admin/usage", { params: { query } })),
  series: (query) => body(api.GET("/admin/usage/series", { params: { query } })),
};

export function AllUsage() {
  return (
    <Page title="Usage and cost" scopes={["admin"]}>
      <UsageReportView
        calls={ALL_USAGE}
        groupings={["tenant", "adapter", "version", "key"]}
        command='tenora generate --model ADAPTER "A question"'
      />
      <RequestList
        queryKey={["all"]}
        withTenant
        list={(query) => body(api.GET("/admin/requests", { params: { query } }))}
      />
    </Page>
  );
}
