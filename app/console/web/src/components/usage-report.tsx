import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import type { Schemas } from "../api/client";
import { csv } from "../lib/csv";
import { download } from "../lib/download";
import { NONE, count, money, seconds, share } from "../lib/format";
import { usageSeries } from "../lib/usage-series";
import { Chart } from "./chart";
import { Empty } from "./empty";
import { Select } from "./field";
import { Loaded } from "./loaded";
import { Table } from "./table";
import { Tiles } from "./tiles";

type Group = Schemas["UsageGroup"];
type Report = Schemas["UsageReport"];
export type UsageQuery = { from: string; to: string; by: string };

const HOUR_S = 3600;
const DAY_S = 24 * HOUR_S;
const PERIODS = [
  ["24 hours", DAY_S, "hour"],
  ["7 days", 7 * DAY_S, "day"],
  ["30 days", 30 * DAY_S, "day"],
  ["1 year", 365 * DAY_S, "day"],
] as const;
const REFRESH_MS = 30_000;

interface Props {
  queryKey: readonly unknown[];
  fetchReport: (query: UsageQuery) => Promise<Report>;
  /** Names by which the figures can be grouped; the first is chosen at first. */
  groupings: readonly string[];
  /** Keep only the groups of this adapter, as `tenant/adapter`. */
  adapter?: string;
  command: string;
}

/** Usage of a period: totals, requests and tokens over time, and a table by group. */
export function UsageReportView({ queryKey, fetchReport, groupings, adapter, command }: Props) {
  const [period, setPeriod] = useState("1");
  const [grouping, setGrouping] = useState(groupings[0] ?? "adapter");
  const [, lengthS, step] = PERIODS[Number(period)] ?? PERIODS[0];
  const query = useQuery({
    queryKey: ["usage", ...queryKey, period, grouping],
    queryFn: () => {
      const now = Date.now();
      return fetchReport({
        from: new Date(now - lengthS * 1000).toISOString(),
        to: new Date(now).toISOString(),
        by: `${grouping},${step}`,
      });
    },
    refetchInterval: REFRESH_MS,
  });

  return (
    <>
      <div className="fields">
        <Select
          label="Period"
          value={period}
          onValue={setPeriod}
          options={PERIODS.map(([name], index) => [String(index), `last ${name}`] as const)}
        />
        {groupings.length > 1 && (
          <Select
            label="By"
            value={grouping}
            onValue={setGrouping}
            options={groupings.map((name) => [name, name] as const)}
          />
        )}
      </div>
      <Loaded query={query}>
        {(report) => (
          <ReportView
            report={only(report, adapter)}
            grouping={grouping}
            stepS={step === "hour" ? HOUR_S : DAY_S}
            command={command}
          />
        )}
      </Loaded>
    </>
  );
}

function only(report: Report, adapter: string | undefined): Report {
  if (adapter === undefined) return report;
  const data = report.data.filter((group) => group.adapter?.split("@")[0] === adapter);
  return { ...report, data, total: total(data) };
}

interface ViewProps {
  report: Report;
  grouping: string;
  stepS: number;
  command: string;
}

function ReportView({ report, grouping, stepS, command }: ViewProps) {
  const series = useMemo(() => usageSeries(report.data, report.start, report.end, stepS), [report, stepS]);
  const lines = useMemo(() => [{ name: "requests", values: series.requests }], [series]);
  const tokens = useMemo(() => [{ name: "tokens", values: series.tokens }], [series]);
  const rows = useMemo(() => byName(report.data, grouping), [report, grouping]);
  if (report.total.requests === 0) {
    return (
      <Empty title="No requests in this period" command={command}>
        <p>A request appears here about a second after its end.</p>
      </Empty>
    );
  }
  return (
    <>
      <Totals total={report.total} currency={report.currency} />
      <Chart label="Requests over time" times={series.times} series={lines} />
      <Chart label="Tokens over time" times={series.times} series={tokens} />
      <GroupTable rows={rows} grouping={grouping} currency={report.currency} />
      <p>
        <button type="button" onClick={() => download("usage.csv", asCsv(rows, grouping), "text/csv")}>
          Download as CSV
        </button>
      </p>
    </>
  );
}

function Totals({ total, currency }: { total: Schemas["UsageTotals"]; currency: string }) {
  return (
    <Tiles
      tiles={[
        ["Requests", count(total.requests)],
        ["Failed", share(total.requests === 0 ? null : total.failed / total.requests)],
        ["Prompt tokens", count(total.prompt_tokens)],
        ["Output tokens", count(total.output_tokens)],
        ["Cold loads", count(total.cold_loads)],
        ["Slot time", seconds(total.slot_s)],
        ["Cost", money(total.cost, currency)],
      ]}
    />
  );
}

type Row = { name: string } & Schemas["UsageTotals"];

function GroupTable({ rows, grouping, currency }: { rows: readonly Row[]; grouping: string; currency: string }) {
  return (
    <Table
      caption={`Usage by ${grouping}`}
      showCaption
      rows={rows}
      rowKey={(row) => row.name}
      columns={[
        { head: grouping, cell: (row) => row.name || "base model" },
        { head: "Requests", numeric: true, cell: (row) => count(row.requests) },
        { head: "Failed", numeric: true, cell: (row) => count(row.failed) },
        { head: "Prompt tokens", numeric: true, cell: (row) => count(row.prompt_tokens) },
        { head: "Output tokens", numeric: true, cell: (row) => count(row.output_tokens) },
        { head: "Cold loads", numeric: true, cell: (row) => count(row.cold_loads) },
        { head: "Cost", numeric: true, cell: (row) => money(row.cost, currency) },
      ]}
    />
  );
}

function nameOf(group: Group, grouping: string): string {
  if (grouping === "tenant") return group.tenant ?? NONE;
  return (grouping === "key" ? group.key : group.adapter) ?? NONE;
}

/** Sum the steps of time of each group, busiest first. */
function byName(groups: readonly Group[], grouping: string): Row[] {
  const found = Map.groupBy(groups, (group) => nameOf(group, grouping));
  const rows = [...found].map(([name, data]) => ({ name, ...total(data) }));
  return rows.sort((a, b) => b.requests - a.requests);
}

function total(groups: readonly Schemas["UsageTotals"][]): Schemas["UsageTotals"] {
  const sum = (field: Exclude<keyof Schemas["UsageTotals"], "cost">) =>
    groups.reduce((value, group) => value + group[field], 0);
  return {
    requests: sum("requests"),
    failed: sum("failed"),
    prompt_tokens: sum("prompt_tokens"),
    cached_tokens: sum("cached_tokens"),
    output_tokens: sum("output_tokens"),
    cold_loads: sum("cold_loads"),
    load_s: sum("load_s"),
    slot_s: sum("slot_s"),
    cost: addDecimals(groups.map((group) => group.cost)),
  };
}

/** Add decimal amounts without rounding: they have up to twelve decimals. */
export function addDecimals(amounts: readonly string[]): string {
  const places = Math.max(0, ...amounts.map((amount) => amount.split(".")[1]?.length ?? 0));
  const sum = amounts.reduce((value, amount) => {
    const [integer = "0", fraction = ""] = amount.split(".");
    return value + BigInt(integer + fraction.padEnd(places, "0"));
  }, 0n);
  if (places === 0) return String(sum);
  const digits = String(sum).padStart(places + 1, "0");
  return `${digits.slice(0, -places)}.${digits.slice(-places)}`.replace(/\.?0+$/, "");
}

function asCsv(rows: readonly Row[], grouping: string): string {
  const fields = [
    "requests",
    "failed",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "cold_loads",
    "load_s",
    "cost",
    "slot_s",
  ] as const;
  return csv([[grouping, ...fields], ...rows.map((row) => [row.name, ...fields.map((field) => row[field])])]);
}
