import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { Schemas } from "../api/client";
import { count, money, seconds, share } from "../lib/format";
import { Empty } from "./empty";
import { Select } from "./field";
import { Loaded } from "./loaded";
import { Tiles } from "./tiles";
import { UsageCharts } from "./usage-charts";
import { UsageTable } from "./usage-table";

type Report = Schemas["UsageReport"];
export type ReportQuery = { from: string; to: string; by: string };
export type SeriesQuery = { from: string; to: string; step: Schemas["SeriesStep"] };

/** Calls on the usage of one tenant, or of all. */
export interface UsageCalls {
  queryKey: readonly unknown[];
  report: (query: ReportQuery) => Promise<Report>;
  series: (query: SeriesQuery) => Promise<Schemas["UsageSeries"]>;
}

const PERIODS = [
  { name: "hour", lengthS: 3600, step: "1m", stepS: 60 },
  { name: "24 hours", lengthS: 86_400, step: "5m", stepS: 300 },
  { name: "7 days", lengthS: 7 * 86_400, step: "1h", stepS: 3600 },
  { name: "30 days", lengthS: 30 * 86_400, step: "1d", stepS: 86_400 },
] as const;
const DEFAULT = PERIODS[1];
const REFRESH_MS = 30_000;

interface Props {
  calls: UsageCalls;
  /** Names by which the figures can be grouped; the first is chosen at first. */
  groupings: readonly string[];
  /** Show the groups of this adapter only, as `tenant/adapter`. The calls' series must be of it too. */
  adapter?: string;
  command: string;
}

/** Usage of a period: totals, figures over time, and a table by group. */
export function UsageReportView({ calls, groupings, adapter, command }: Props) {
  const [name, setName] = useState<string>(DEFAULT.name);
  const [grouping, setGrouping] = useState(groupings[0] ?? "adapter");
  const period = PERIODS.find((one) => one.name === name) ?? DEFAULT;
  const report = useQuery({
    queryKey: ["usage", ...calls.queryKey, name, grouping],
    queryFn: () => calls.report({ ...window(period.lengthS), by: grouping }),
    refetchInterval: REFRESH_MS,
  });
  const series = useQuery({
    queryKey: ["series", ...calls.queryKey, name],
    queryFn: () => calls.series({ ...window(period.lengthS), step: period.step }),
    refetchInterval: REFRESH_MS,
  });

  return (
    <>
      <div className="fields">
        <Select
          label="Period"
          value={name}
          onValue={setName}
          options={PERIODS.map((one) => [one.name, `last ${one.name}`] as const)}
        />
        {groupings.length > 1 && (
          <Select label="By" value={grouping} onValue={setGrouping} options={groupings.map((one) => [one, one])} />
        )}
      </div>
      <Loaded query={series}>
        {(data) => data.data.length > 0 && <UsageCharts series={data} stepS={period.stepS} />}
      </Loaded>
      <Loaded query={report}>
        {(data) => <ReportView report={data} grouping={grouping} adapter={adapter} command={command} />}
      </Loaded>
    </>
  );
}

function window(lengthS: number): { from: string; to: string } {
  const now = Date.now();
  return { from: new Date(now - lengthS * 1000).toISOString(), to: new Date(now).toISOString() };
}

interface ViewProps {
  report: Report;
  grouping: string;
  adapter: string | undefined;
  command: string;
}

function ReportView({ report, grouping, adapter, command }: ViewProps) {
  const groups = report.data.filter((group) => adapter === undefined || group.adapter?.split("@")[0] === adapter);
  if (groups.length === 0) {
    return (
      <Empty title="No requests in this period" command={command}>
        <p>A request appears here about a second after its end.</p>
      </Empty>
    );
  }
  return (
    <>
      {adapter === undefined && <Totals total={report.total} currency={report.currency} />}
      <UsageTable groups={groups} grouping={grouping} currency={report.currency} />
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
