import { api, body } from "../../api/client";
import { Page } from "../../components/page";
import { RequestList } from "../../components/request-list";
import { type UsageCalls, UsageReportView } from "../../components/usage-report";
import { useParam } from "../../lib/params";
import { useMe } from "../../session";

/** Return the calls on the usage of a tenant, by its own key or a platform key. The series may be of one adapter. */
export function usageCalls(isPlatform: boolean, tenant: string, adapter?: string): UsageCalls {
  const queryKey = [tenant, adapter];
  if (isPlatform) {
    return {
      queryKey,
      report: (query) => body(api.GET("/admin/usage", { params: { query: { ...query, tenant } } })),
      series: (query) => {
        const named = adapter === undefined ? undefined : `${tenant}/${adapter}`;
        return body(api.GET("/admin/usage/series", { params: { query: { ...query, tenant, adapter: named } } }));
      },
    };
  }
  return {
    queryKey,
    report: (query) => body(api.GET("/v1/usage", { params: { query } })),
    series: (query) => body(api.GET("/v1/usage/series", { params: { query: { ...query, adapter } } })),
  };
}

export function Usage() {
  const tenant = useParam("tenant");
  const { isPlatform } = useMe();
  return (
    <Page title="Usage" scopes={["usage:read"]}>
      <UsageReportView
        calls={usageCalls(isPlatform, tenant)}
        groupings={["adapter", "version", "key"]}
        command='tenora generate --model ADAPTER "A question"'
      />
      <RequestList
        queryKey={[tenant]}
        list={(query) =>
          isPlatform
            ? body(api.GET("/admin/requests", { params: { query: { ...query, tenant } } }))
            : body(api.GET("/v1/requests", { params: { query } }))
        }
      />
    </Page>
  );
}
