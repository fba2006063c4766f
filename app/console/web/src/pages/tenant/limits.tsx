import { useQuery } from "@tanstack/react-query";
import { type Schemas, api, body } from "../../api/client";
import { Loaded } from "../../components/loaded";
import { Page } from "../../components/page";
import { QuotaTable } from "../../components/quota-table";
import { Table } from "../../components/table";
import { NONE, seconds } from "../../lib/format";
import { useParam } from "../../lib/params";
import { useMe } from "../../session";

const REFRESH_MS = 5_000;

export function Limits() {
  const tenant = useParam("tenant");
  const { isPlatform, can } = useMe();
  return (
    <Page title="Limits and quota" scopes={isPlatform ? ["admin"] : []}>
      {isPlatform ? <TenantQuota tenant={tenant} /> : <OwnLimits canReadQuota={can("adapters:read")} />}
    </Page>
  );
}

function OwnLimits({ canReadQuota }: { canReadQuota: boolean }) {
  const limits = useQuery({
    queryKey: ["limits"],
    queryFn: () => body(api.GET("/v1/limits")),
    refetchInterval: REFRESH_MS,
  });
  return (
    <>
      <Loaded query={limits}>
        {({ tenant, key }) => (
          <>
            <LimitTable title="Limits of the tenant" limits={tenant} />
            <LimitTable title="Limits of your key" limits={key} />
          </>
        )}
      </Loaded>
      {canReadQuota && <OwnQuota />}
    </>
  );
}

function OwnQuota() {
  const query = useQuery({ queryKey: ["quota"], queryFn: () => body(api.GET("/v1/quota")) });
  return <Loaded query={query}>{({ quota, used }) => <QuotaTable quota={quota} used={used} />}</Loaded>;
}

function TenantQuota({ tenant }: { tenant: string }) {
  const query = useQuery({
    queryKey: ["tenant", tenant],
    queryFn: () => body(api.GET("/admin/tenants/{tenant}", { params: { path: { tenant } } })),
  });
  return <Loaded query={query}>{({ quota, used }) => <QuotaTable quota={quota} used={used} />}</Loaded>;
}

function LimitTable({ title, limits }: { title: string; limits: readonly Schemas["LimitStatus"][] }) {
  return (
    <section aria-label={title}>
      <h2>{title}</h2>
      {limits.length === 0 ? (
        <p className="quiet">No limit is set.</p>
      ) : (
        <Table
          caption={title}
          rows={limits}
          rowKey={(limit) => limit.limit}
          columns={[
            { head: "Limit", cell: (limit) => limit.limit.replaceAll("_", " ") },
            { head: "Allowed", numeric: true, cell: (limit) => String(limit.allowed) },
            { head: "Used", numeric: true, cell: (limit) => String(limit.used ?? NONE) },
            { head: "Left", numeric: true, cell: (limit) => String(limit.remaining) },
            { head: "Full again in", numeric: true, cell: (limit) => seconds(limit.reset_s) },
          ]}
        />
      )}
    </section>
  );
}
