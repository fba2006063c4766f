import type { Schemas } from "../api/client";
import { NONE, bytes, count } from "../lib/format";
import { Table } from "./table";

const NAMES = ["adapters", "versions", "bytes", "rank", "pinned_slots"] as const;
type Name = (typeof NAMES)[number];

/** Quota of a tenant: what it may keep, and what it keeps. */
export function QuotaTable({ quota, used }: { quota: Schemas["Quota"]; used: Schemas["QuotaUse"] }) {
  return (
    <section aria-label="Quota">
      <h2>Quota</h2>
      <Table
        caption="Quota"
        rows={NAMES}
        rowKey={(name) => name}
        columns={[
          { head: "Kept", cell: (name) => name.replaceAll("_", " ") },
          { head: "Used", numeric: true, cell: (name) => amount(name, used[name]) },
          {
            head: "Allowed",
            numeric: true,
            cell: (name) => (quota[name] === null ? "no limit" : amount(name, quota[name])),
          },
          { head: "Share", cell: (name) => <Bar name={name} used={used[name]} allowed={quota[name]} /> },
        ]}
      />
    </section>
  );
}

function amount(name: Name, value: number): string {
  return name === "bytes" ? bytes(value) : count(value);
}

function Bar({ name, used, allowed }: { name: Name; used: number; allowed: number | null }) {
  if (allowed === null || allowed === 0) return NONE;
  return <progress aria-label={`Used of ${name.replaceAll("_", " ")}`} value={Math.min(used, allowed)} max={allowed} />;
}
