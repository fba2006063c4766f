import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { type Schemas, api, body } from "../../api/client";
import { Badge } from "../../components/badge";
import { Chart } from "../../components/chart";
import { Loaded } from "../../components/loaded";
import { Page } from "../../components/page";
import { Table } from "../../components/table";
import { Tiles } from "../../components/tiles";
import { NONE, bytes, count, number, seconds, share } from "../../lib/format";
import { type EngineNode, NodePicker, NodeState, Nodes, Replicas, THIS_SERVER, hasEngine } from "./engine-nodes";

type Engine = Schemas["Engine"];

const REFRESH_MS = 1_000;
const KEPT_S = 300;

/** Engines once a second: that of this server with tiers and load times, or that of a node as of its heartbeat. */
export function EnginePage() {
  return (
    <Page title="Engine" scopes={["admin"]}>
      <LiveEngine />
    </Page>
  );
}

function LiveEngine() {
  const query = useQuery({
    queryKey: ["engine"],
    queryFn: () => body(api.GET("/admin/engine")),
    refetchInterval: REFRESH_MS,
    staleTime: 0,
    retry: false,
  });
  const [chosen, setChosen] = useState(THIS_SERVER);
  return (
    <Loaded query={query}>
      {(engine) => {
        const nodes = engine.nodes.filter(hasEngine);
        const node = nodes.find((one) => one.id === chosen);
        return (
          <>
            <NodePicker name={engine.node} nodes={nodes} chosen={node?.id ?? THIS_SERVER} onChosen={setChosen} />
            {node === undefined ? (
              <ThisServer engine={engine} at={query.dataUpdatedAt} />
            ) : (
              <OneNode key={node.id} node={node} at={query.dataUpdatedAt} />
            )}
            <Nodes nodes={engine.nodes} />
          </>
        );
      }}
    </Loaded>
  );
}

function ThisServer({ engine, at }: { engine: Engine; at: number }) {
  return (
    <>
      <Summary engine={engine} />
      <QueueChart running={engine.queue.running} waiting={engine.queue.waiting} at={at} />
      <Tiers tiers={engine.tiers} />
      <Loads loads={engine.load_seconds} />
      <Versions versions={engine.versions} />
      <Tenants tenants={engine.tenants} />
      <Replicas replicas={engine.replicas} />
    </>
  );
}

function OneNode({ node, at }: { node: EngineNode; at: number }) {
  return (
    <>
      <QueueChart running={node.engine.running} waiting={node.engine.waiting} at={at} />
      <NodeState node={node} />
    </>
  );
}

function Summary({ engine }: { engine: Engine }) {
  return (
    <Tiles
      tiles={[
        ["State", <Badge state={engine.state} />],
        ["Slots used", `${engine.slots.used} of ${engine.slots.total}`],
        ["Slots pinned", count(engine.slots.pinned)],
        ["Running", count(engine.queue.running)],
        ["Waiting", count(engine.queue.waiting)],
        ["Restarts", count(engine.restarts)],
      ]}
    />
  );
}

interface Sample {
  at: number;
  running: number;
  waiting: number;
}

function QueueChart({ running, waiting, at }: Sample) {
  const [samples, setSamples] = useState<readonly Sample[]>([]);

  useEffect(() => {
    setSamples((before) => [
      ...before.filter((sample) => sample.at > at / 1000 - KEPT_S),
      { at: at / 1000, running, waiting },
    ]);
  }, [at, running, waiting]);

  return (
    <Chart
      label="Running and waiting requests in the last five minutes"
      times={samples.map((sample) => sample.at)}
      series={[
        { name: "running", values: samples.map((sample) => sample.running) },
        { name: "waiting", values: samples.map((sample) => sample.waiting) },
      ]}
    />
  );
}

function Tiers({ tiers }: { tiers: Engine["tiers"] }) {
  return (
    <Table
      caption="Tiers"
      showCaption
      rows={tiers}
      rowKey={(tier) => tier.tier}
      columns={[
        { head: "Tier", cell: (tier) => tier.tier },
        { head: "Used", numeric: true, cell: (tier) => used(tier) },
        { head: "Hits", numeric: true, cell: (tier) => count(tier.hits) },
        { head: "Misses", numeric: true, cell: (tier) => count(tier.misses) },
        { head: "Hit rate", numeric: true, cell: (tier) => share(tier.hit_rate) },
        { head: "Evictions", numeric: true, cell: (tier) => count(tier.evictions) },
        { head: "Failures", numeric: true, cell: (tier) => count(tier.failures) },
      ]}
    />
  );
}

function used({ used_bytes, limit_bytes }: Engine["tiers"][number]): string {
  // Slots are counted, not measured.
  return used_bytes === null ? NONE : `${bytes(used_bytes)} of ${bytes(limit_bytes)}`;
}

function Loads({ loads }: { loads: Engine["load_seconds"] }) {
  const rows = [["median", loads.p50] as const, ["99th percentile", loads.p99] as const];
  return (
    <Table
      caption={`Phases of ${count(loads.loads)} loads`}
      showCaption
      rows={rows}
      rowKey={([name]) => name}
      columns={[
        { head: "Loads", cell: ([name]) => name },
        { head: "Fetch", numeric: true, cell: ([, phases]) => seconds(phases?.fetch) },
        { head: "Stage", numeric: true, cell: ([, phases]) => seconds(phases?.stage) },
        { head: "Wait", numeric: true, cell: ([, phases]) => seconds(phases?.wait) },
        { head: "Copy", numeric: true, cell: ([, phases]) => seconds(phases?.copy) },
        { head: "Total", numeric: true, cell: ([, phases]) => seconds(phases?.total) },
      ]}
    />
  );
}

function Versions({ versions }: { versions: Engine["versions"] }) {
  return (
    <Table
      caption={`Versions on this server: ${count(versions.total)}`}
      showCaption
      rows={versions.data}
      rowKey={(version) => version.name}
      columns={[
        { head: "Version", cell: (version) => version.name },
        { head: "Tier", cell: (version) => <Badge state={version.tier} /> },
        {
          head: "State",
          cell: (version) =>
            [version.pinned && "pinned", version.draining && "draining"].filter(Boolean).join(", ") || NONE,
        },
        { head: "Running", numeric: true, cell: (version) => count(version.running) },
        { head: "Waiting", numeric: true, cell: (version) => count(version.waiting) },
        { head: "Longest wait", numeric: true, cell: (version) => seconds(version.oldest_wait_s) },
        { head: "Size", numeric: true, cell: (version) => bytes(version.bytes) },
      ]}
    />
  );
}

function Tenants({ tenants }: { tenants: Engine["tenants"] }) {
  return (
    <Table
      caption={`Queues of tenants: ${count(tenants.total)}`}
      showCaption
      rows={tenants.data}
      rowKey={(tenant) => tenant.tenant ?? ""}
      columns={[
        { head: "Tenant", cell: (tenant) => tenant.tenant ?? "background work" },
        { head: "Weight", numeric: true, cell: (tenant) => number(tenant.weight) },
        { head: "Running", numeric: true, cell: (tenant) => count(tenant.running) },
        { head: "Waiting", numeric: true, cell: (tenant) => count(tenant.waiting) },
      ]}
    />
  );
}
