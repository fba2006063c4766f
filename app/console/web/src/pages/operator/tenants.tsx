import { useState } from "react";
import { Link } from "wouter";
import { type Schemas, api, body } from "../../api/client";
import { ActionDialog } from "../../components/action-dialog";
import { Badge } from "../../components/badge";
import { Empty } from "../../components/empty";
import { Field } from "../../components/field";
import { Page } from "../../components/page";
import { Paged, usePages } from "../../components/paged";
import { SearchFields, type Sort } from "../../components/search-fields";
import { Table } from "../../components/table";
import { useDebounced } from "../../lib/debounced";
import { number, time } from "../../lib/format";
import { to } from "../../lib/links";

export function Tenants() {
  const [creating, setCreating] = useState(false);
  const [text, setText] = useState("");
  const [sort, setSort] = useState<Sort>("-created");
  const search = { q: useDebounced(text.trim()) || undefined, sort };
  const query = usePages(["tenants", search], (cursor) =>
    body(api.GET("/admin/tenants", { params: { query: { ...search, cursor } } })),
  );
  return (
    <Page
      title="Tenants"
      scopes={["admin"]}
      actions={
        <button type="button" className="primary" onClick={() => setCreating(true)}>
          Create a tenant…
        </button>
      }
    >
      <search className="fields">
        <SearchFields text={text} onText={setText} sort={sort} onSort={setSort} />
      </search>
      <Paged query={query}>
        {(tenants) =>
          tenants.length === 0 && search.q !== undefined ? (
            <p className="quiet">No such tenant.</p>
          ) : tenants.length === 0 ? (
            <Empty title="No tenants" command='tenora tenants create acme --name "Acme Corp"'>
              <p>A tenant is a business unit: it owns adapters, keys and limits.</p>
            </Empty>
          ) : (
            <TenantTable tenants={tenants} />
          )
        }
      </Paged>
      {creating && <CreateTenant onClose={() => setCreating(false)} />}
    </Page>
  );
}

function TenantTable({ tenants }: { tenants: readonly Schemas["Tenant"][] }) {
  return (
    <Table
      caption="Tenants"
      rows={tenants}
      rowKey={(tenant) => tenant.slug}
      columns={[
        { head: "Tenant", cell: (tenant) => <Link href={to.tenant(tenant.slug)}>{tenant.slug}</Link> },
        { head: "Name", cell: (tenant) => tenant.name },
        { head: "State", cell: (tenant) => <Badge state={tenant.disabled ? "disabled" : "enabled"} /> },
        { head: "Weight", numeric: true, cell: (tenant) => number(tenant.weight) },
        { head: "Created", cell: (tenant) => time(tenant.created_at) },
        {
          head: "Pages",
          cell: (tenant) => (
            <div className="row">
              <Link href={to.adapters(tenant.slug)} aria-label={`Adapters of ${tenant.slug}`}>
                Adapters
              </Link>
              <Link href={to.page(tenant.slug, "keys")} aria-label={`Keys of ${tenant.slug}`}>
                Keys
              </Link>
              <Link href={to.page(tenant.slug, "usage")} aria-label={`Usage of ${tenant.slug}`}>
                Usage
              </Link>
            </div>
          ),
        },
      ]}
    />
  );
}

function CreateTenant({ onClose }: { onClose: () => void }) {
  const [slug, setSlug] = useState("");
  const [name, setName] = useState("");
  const [weight, setWeight] = useState("1");
  return (
    <ActionDialog
      title="Create a tenant"
      submit="Create the tenant"
      disabled={slug.trim() === ""}
      onClose={onClose}
      action={() =>
        api.POST("/admin/tenants", { body: { slug: slug.trim(), name: name.trim() || null, weight: Number(weight) } })
      }
    >
      <Field label="Slug" value={slug} onValue={setSlug} autoComplete="off" hint="1 to 63 of a-z 0-9 . _ -" />
      <Field label="Name" value={name} onValue={setName} />
      <Field
        label="Weight"
        type="number"
        min={0.001}
        max={1000}
        step="any"
        value={weight}
        onValue={setWeight}
        hint="A tenant of weight 2 gets twice the tokens of one of weight 1."
      />
    </ActionDialog>
  );
}
