import { useState } from "react";
import { Link } from "wouter";
import { type Schemas, api, body } from "../../api/client";
import { Empty } from "../../components/empty";
import { Page } from "../../components/page";
import { Paged, usePages } from "../../components/paged";
import { SearchFields, type Sort } from "../../components/search-fields";
import { Table } from "../../components/table";
import { useDebounced } from "../../lib/debounced";
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
  const [text, setText] = useState("");
  const [sort, setSort] = useState<Sort>("-created");
  const search = { q: useDebounced(text.trim()) || undefined, sort };
  const query = usePages(["shared", tenant, search], (cursor) =>
    body(api.GET("/admin/tenants/{tenant}/shared", { params: { path: { tenant }, query: { ...search, cursor } } })),
  );
  return (
    <>
      <search className="fields">
        <SearchFields text={text} onText={setText} sort={sort} onSort={setSort} />
      </search>
      <Paged query={query}>
        {(adapters) =>
          adapters.length > 0 ? (
            <SharedTable tenant={tenant} adapters={adapters} />
          ) : search.q !== undefined ? (
            <p className="quiet">No such adapter.</p>
          ) : (
            <Empty
              title="No tenant shares an adapter"
              command={`tenora adapters share ADAPTER ${tenant} --tenant OWNER`}
            >
              <p>The owner of an adapter shares it on the adapter&apos;s page.</p>
            </Empty>
          )
        }
      </Paged>
    </>
  );
}

function SharedTable({ tenant, adapters }: { tenant: string; adapters: readonly Schemas["SharedAdapter"][] }) {
  return (
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
            <Link href={`${to.page(tenant, "playground")}?model=${encodeURIComponent(adapter.name)}`}>Try it</Link>
          ),
        },
      ]}
    />
  );
}
