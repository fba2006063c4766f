import type { Schemas } from "../../api/client";
import { Badge } from "../../components/badge";
import { Select } from "../../components/field";
import { Table } from "../../components/table";
import { Tiles } from "../../components/tiles";
import { NONE, bytes, count, seconds, time } from "../../lib/format";

type Node = Schemas["Server"];
type NodeEngine = Schemas["NodeEngine"];
/** A node that has reported the state of its engine. */
export type EngineNode = Node & { engine: NodeEngine };

/** Value of the picker for the server that answers. */
export const THIS_SERVER = "";

export function hasEngine(node: Node): node is EngineNode {
  return node.engine !== null;
}

interface PickerProps {
  /** Name of the server that answers. */
  name: string;
  nodes: readonly EngineNode[];
  chosen: string;
  onChosen: (id: string) => void;
}

/** Choice between the server that answers and the engines of all nodes. */
export function NodePicker({ name, nodes, chosen, onChosen }: PickerProps) {
  const options = nodes.map((node) => [node.id, labelOf(node)] as const);
  return (
    <div className="fields">
      <Select
        label="Node"
        value={chosen}
        onValue={onChosen}
        options={[[THIS_SERVER, `${name}: live, with tiers and loads`], ...options]}
      />
    </div>
  );
}

function labelOf(node: EngineNode): string {
  return `${node.name} (${node.role ?? "server"} ${node.id.slice(0, 8)})${node.alive ? "" : ", no answer"}`;
}

/** State of one node's engine, as of its last heartbeat. */
export function NodeState({ node }: { node: EngineNode }) {
  const { engine } = node;
  return (
    <>
      <p className="quiet">
        As of {seconds(engine.age_s)} ago, from {node.name} on {engine.device || "an unknown device"}.
      </p>
      <Tiles
        tiles={[
          ["State", <Badge state={node.alive ? engine.state : "no answer"} />],
          ["Slots used", `${engine.slots.used} of ${engine.slots.total}`],
          ["Slots pinned", count(engine.slots.pinned)],
          ["Running", count(engine.running)],
          ["Waiting", count(engine.waiting)],
          ["Loads", count(engine.loads)],
          ["Host memory", bytes(engine.host_used_bytes)],
          ["Disk", bytes(engine.disk_used_bytes)],
          ["Restarts", count(engine.restarts)],
        ]}
      />
      <Table
        caption={`Versions in slots: ${count(engine.versions.length + engine.more_versions)}`}
        showCaption
        rows={engine.versions}
        rowKey={(version) => version.name}
        columns={[
          { head: "Version", cell: (version) => version.name },
          { head: "Tier", cell: (version) => <Badge state={version.tier} /> },
          { head: "Running", numeric: true, cell: (version) => count(version.running) },
          { head: "Waiting", numeric: true, cell: (version) => count(version.waiting) },
        ]}
      />
    </>
  );
}

/** All servers and engine replicas on this registry. */
export function Nodes({ nodes }: { nodes: readonly Node[] }) {
  return (
    <Table
      caption="Nodes"
      showCaption
      rows={nodes}
      rowKey={(node) => node.id}
      columns={[
        { head: "Node", cell: (node) => node.name },
        { head: "Role", cell: (node) => node.role ?? NONE },
        { head: "State", cell: (node) => <Badge state={node.alive ? "ok" : "no answer"} /> },
        { head: "Engine", cell: (node) => (node.engine === null ? NONE : <Badge state={node.engine.state} />) },
        { head: "Slots", numeric: true, cell: ({ engine }) => slots(engine) },
        { head: "Running", numeric: true, cell: ({ engine }) => (engine === null ? NONE : count(engine.running)) },
        { head: "Waiting", numeric: true, cell: ({ engine }) => (engine === null ? NONE : count(engine.waiting)) },
        { head: "Started", cell: (node) => time(node.started_at) },
        { head: "Seen", cell: (node) => time(node.seen_at) },
      ]}
    />
  );
}

function slots(engine: NodeEngine | null): string {
  return engine === null ? NONE : `${engine.slots.used} of ${engine.slots.total}`;
}

/** Engine replicas behind the server that answers, with its own requests there. */
export function Replicas({ replicas }: { replicas: readonly Schemas["Replica"][] }) {
  if (replicas.length === 0) return null;
  return (
    <Table
      caption="Replicas of this server"
      showCaption
      rows={replicas}
      rowKey={(replica) => replica.node}
      columns={[
        { head: "Node", cell: (replica) => <code>{replica.node.slice(0, 8)}</code> },
        { head: "State", cell: (replica) => <Badge state={replica.state} /> },
        { head: "Requests sent", numeric: true, cell: (replica) => count(replica.requests) },
        { head: "Retries", numeric: true, cell: (replica) => count(replica.retries) },
        { head: "Lost", numeric: true, cell: (replica) => count(replica.lost) },
      ]}
    />
  );
}
