import { useState } from "react";
import { Link } from "wouter";
import { type Schemas, api, body } from "../../api/client";
import { Empty } from "../../components/empty";
import { Field, Select } from "../../components/field";
import { Page } from "../../components/page";
import { Paged, usePages } from "../../components/paged";
import { SearchFields, type Sort } from "../../components/search-fields";
import { Table } from "../../components/table";
import { useDebounced } from "../../lib/debounced";
import { NONE, count, time, weights } from "../../lib/format";
import { to } from "../../lib/links";
import { useParam } from "../../lib/params";
import { useMe } from "../../session";

const STATES = ["", "ready", "validating", "rejected", "quarantined", "retired"] as const;

export function Adapters() {
  const tenant = useParam("tenant");
  const { can } = useMe();
  const upload = can("adapters:write") && (
    <Link href={to.upload(tenant)} className="button primary">
      Upload an adapter
    </Link>
  );
  return (
    <Page title="Adapters" scopes={["adapters:read"]} actions={upload}>
      <AdapterList tenant={tenant} />
    </Page>
  );
}

function AdapterList({ tenant }: { tenant: string }) {
  const [text, setText] = useState("");
  const [sort, setSort] = useState<Sort>("-created");
  const [label, setLabel] = useState("");
  const [state, setState] = useState("");
  const labelFilter = useDebounced(label.trim());
  const q = useDebounced(text.trim()) || undefined;
  const filter = { q, sort, state: state || undefined, label: labelFilter.includes("=") ? [labelFilter] : undefined };
  const query = usePages(["adapters", tenant, filter], (cursor) =>
    body(
      api.GET("/admin/tenants/{tenant}/adapters", {
        params: { path: { tenant }, query: { ...filter, cursor, limit: 50 } },
      }),
    ),
  );
  const isFiltered = q !== undefined || filter.state !== undefined || filter.label !== undefined;

  return (
    <>
      <search className="fields">
        <SearchFields text={text} onText={setText} sort={sort} onSort={setSort} />
        <Select
          label="State of a version"
          value={state}
          onValue={setState}
          options={STATES.map((name) => [name, name || "any"] as const)}
        />
        <Field label="Label" placeholder="team=pricing" value={label} onValue={setLabel} />
      </search>
      <Paged query={query}>
        {(adapters) =>
          adapters.length > 0 ? (
            <AdapterTable tenant={tenant} adapters={adapters} />
          ) : isFiltered ? (
            <Empty title="No such adapter">
              <p>Choose another name, state or label.</p>
            </Empty>
          ) : (
            <Empty title="No adapters yet" command={`tenora adapters push FOLDER --tenant ${tenant} --adapter NAME`}>
              <p>Upload the folder that PEFT wrote after a training. It becomes version 1 of an adapter.</p>
              <Link href={to.upload(tenant)} className="button primary">
                Upload an adapter
              </Link>
            </Empty>
          )
        }
      </Paged>
    </>
  );
}

function AdapterTable({ tenant, adapters }: { tenant: string; adapters: Schemas["Adapter"][] }) {
  return (
    <Table
      caption="Adapters"
      rows={adapters}
      rowKey={(adapter) => adapter.name}
      columns={[
        { head: "Name", cell: (adapter) => <Link href={to.adapter(tenant, adapter.name)}>{adapter.name}</Link> },
        { head: "Aliases", cell: (adapter) => <AliasTargets aliases={adapter.aliases} /> },
        { head: "Versions", numeric: true, cell: (adapter) => count(adapter.versions.length) },
        { head: "Newest", numeric: true, cell: (adapter) => newest(adapter.versions) },
        { head: "Created", cell: (adapter) => time(adapter.created_at) },
      ]}
    />
  );
}

function newest(versions: readonly number[]): string {
  return versions.length === 0 ? NONE : count(Math.max(...versions));
}

function AliasTargets({ aliases }: { aliases: Schemas["Adapter"]["aliases"] }) {
  const entries = Object.entries(aliases);
  if (entries.length === 0) return NONE;
  return entries.map(([alias, targets]) => (
    <div key={alias}>
      <code>{alias}</code> → {weights(targets)}
    </div>
  ));
}
