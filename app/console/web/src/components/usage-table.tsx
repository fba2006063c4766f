import type { Schemas } from "../api/client";
import { csv } from "../lib/csv";
import { download } from "../lib/download";
import { NONE, count, money } from "../lib/format";
import { Table } from "./table";

type Group = Schemas["UsageGroup"];

interface Props {
  groups: readonly Group[];
  grouping: string;
  currency: string;
}

const FIELDS = [
  ...(["requests", "failed", "prompt_tokens", "cached_tokens", "output_tokens"] as const),
  ...(["cold_loads", "load_s", "cost", "slot_s"] as const),
] as const;

/** Usage by group, busiest first, and the same as a file. */
export function UsageTable({ groups, grouping, currency }: Props) {
  const rows = [...groups].sort((a, b) => b.requests - a.requests);
  const name = (group: Group) => nameOf(group, grouping) || "base model";
  const save = () => {
    const lines = rows.map((group) => [name(group), ...FIELDS.map((field) => group[field]), currency]);
    download("usage.csv", csv([[grouping, ...FIELDS, "currency"], ...lines]), "text/csv");
  };
  return (
    <>
      <Table
        caption={`Usage by ${grouping}`}
        showCaption
        rows={rows}
        rowKey={name}
        columns={[
          { head: grouping, cell: name },
          { head: "Requests", numeric: true, cell: (group) => count(group.requests) },
          { head: "Failed", numeric: true, cell: (group) => count(group.failed) },
          { head: "Prompt tokens", numeric: true, cell: (group) => count(group.prompt_tokens) },
          { head: "Output tokens", numeric: true, cell: (group) => count(group.output_tokens) },
          { head: "Cold loads", numeric: true, cell: (group) => count(group.cold_loads) },
          { head: "Cost", numeric: true, cell: (group) => money(group.cost, currency) },
        ]}
      />
      <p>
        <button type="button" onClick={save}>
          Download as CSV
        </button>
      </p>
    </>
  );
}

function nameOf(group: Group, grouping: string): string {
  if (grouping === "tenant") return group.tenant ?? NONE;
  return (grouping === "key" ? group.key : group.adapter) ?? NONE;
}
