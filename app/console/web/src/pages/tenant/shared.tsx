import { Link } from "wouter";
import { api, body } from "../../api/client";
import { Empty } from "../../components/empty";
import { Page } from "../../components/page";
import { Paged, usePages } from "../../components/paged";
import { Table } from "../../components/table";
import { NONE, count, time, weights } from "../../lib/format";
import { to } from "../../lib/links";
import { useParam } from "../../lib/params";

export function SharedWithMe() {
  const tenant = useParam("tenant");
  return (
    <Page title="Shared with this tenant" scopes={["adapters:read"]}>
      <SharedList tenant={tenant} />
    </Page>
  );
}

function SharedList({ tenant }: { tenant: string }) {
  const query = usePages(["shared", tenant], (cursor) =>
    body(api.GET("/admin/tenants/{tenant}/shared", { params: { path: { tenant }, query: { cursor } } })),
  );
  return (
    <Paged query={query}>
      {(adapters) =>
        adapters.length === 0 ? (
          <Empty title="No tenant shares an adapter" command={`tenora adapters share ADAPTER ${tenant} --tenant OWNER`}>
            <p>The owner of an adapter shares it on the adapter&apos;s page.</p>
          </Empty>
        ) : (
          <Table
            caption="Shared adapters"
            rows={adapters}
            rowKey={(adapter) => adapter.name}
            columns={[
              { head: "Model", cell: (adapter) => <code>{adapter.name}</code> },
              { head: "Owner", cell: (adapter) => adapter.owner },
              {
                head: "Aliases",
                cell: ({ aliases }) =>
                  Object.entries(aliases)
                    .map(([alias, targets]) => `${alias} → ${weights(targets)}`)
                    .join("; ") || NONE,
              },
              { head: "Versions", numeric: true, cell: (adapter) => count(adapter.versions.length) },
              { head: "Since", cell: (adapter) => time(adapter.shared_at) },
              {
                head: "Actions",
                cell: (adapter) => (
                  <Link href={`${to.page(tenant, "playground")}?model=${encodeURIComponent(adapter.name)}`}>
                    Try it
                  </Link>
                ),
              },
            ]}
          />
        )
      }
    </Paged>
  );
}
