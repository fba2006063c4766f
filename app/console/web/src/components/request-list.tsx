import { useState } from "react";
import type { Schemas } from "../api/client";
import { NONE, count, money, seconds, time } from "../lib/format";
import { useMe } from "../session";
import { Select } from "./field";
import { type PageOf, Paged, usePages } from "./paged";
import { Table } from "./table";

interface RequestQuery {
  cursor: string | undefined;
  failed?: boolean;
  cold?: boolean;
}

interface Props {
  queryKey: readonly unknown[];
  list: (query: RequestQuery) => Promise<PageOf<Schemas["Request"]>>;
  withTenant?: boolean;
}

const FILTERS: Readonly<Record<string, Omit<RequestQuery, "cursor">>> = {
  all: {},
  failed: { failed: true },
  "cold loads": { cold: true },
};

/** Single requests, newest first. The server stores no prompts and no answers. */
export function RequestList({ queryKey, list, withTenant = false }: Props) {
  const [filter, setFilter] = useState("all");
  const query = usePages(["requests", ...queryKey, filter], (cursor) => list({ ...FILTERS[filter], cursor }));
  return (
    <section aria-label="Requests">
      <h2>Requests</h2>
      <div className="fields">
        <Select
          label="Show"
          value={filter}
          onValue={setFilter}
          options={Object.keys(FILTERS).map((name) => [name, name])}
        />
      </div>
      <Paged query={query}>
        {(requests) =>
          requests.length === 0 ? (
            <p className="quiet">No such request in the last 30 days.</p>
          ) : (
            <RequestTable requests={requests} withTenant={withTenant} />
          )
        }
      </Paged>
    </section>
  );
}

type Request = Schemas["Request"];

function RequestTable({ requests, withTenant }: { requests: readonly Request[]; withTenant: boolean }) {
  const { server } = useMe();
  return (
    <Table
      caption="Requests"
      rows={requests}
      rowKey={(request) => request.id}
      columns={[
        { head: "When", cell: (request) => time(request.at) },
        ...(withTenant ? [{ head: "Tenant", cell: (request: Request) => request.tenant ?? NONE }] : []),
        { head: "Model", cell: (request) => request.adapter || "base model" },
        { head: "Key", cell: (request) => request.key_name ?? request.key },
        { head: "Status", numeric: true, cell: (request) => request.status },
        { head: "Tokens", numeric: true, cell: (request) => tokens(request) },
        { head: "TTFT", numeric: true, cell: (request) => seconds(request.ttft_s) },
        { head: "Duration", numeric: true, cell: (request) => seconds(request.duration_s) },
        { head: "Load", numeric: true, cell: (request) => seconds(request.load_s) },
        { head: "Cost", numeric: true, cell: (request) => money(request.cost, server.currency) },
        { head: "Request", cell: (request) => <code>{request.id}</code> },
      ]}
    />
  );
}

function tokens(request: Request): string {
  return `${count(request.prompt_tokens)} + ${count(request.output_tokens)}`;
}
