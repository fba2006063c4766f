import type { ReactNode } from "react";
import type { Schemas } from "../api/client";
import { NONE, count, money, time } from "../lib/format";
import { useMe } from "../session";
import { Badge } from "./badge";
import { type Column, Table } from "./table";

type AnyBatch = Schemas["Batch"] | Schemas["PlatformBatch"];

interface Props<T extends AnyBatch> {
  batches: readonly T[];
  columns?: readonly Column<T>[];
  actions?: (batch: T) => ReactNode;
}

/** Batches with their progress, cost and cause of a wait or an end. */
export function BatchTable<T extends AnyBatch>({ batches, columns = [], actions }: Props<T>) {
  const { server } = useMe();
  return (
    <Table
      caption="Batches"
      rows={batches}
      rowKey={(batch) => batch.id}
      columns={[
        { head: "Batch", cell: (batch) => <code>{batch.id}</code> },
        ...columns,
        { head: "Model", cell: (batch) => batch.tenora.model ?? NONE },
        { head: "State", cell: (batch) => <BatchState batch={batch} /> },
        { head: "Progress", cell: (batch) => <Progress counts={batch.request_counts} /> },
        { head: "Tokens", numeric: true, cell: (batch) => count(batch.usage.total_tokens) },
        { head: "Cost", numeric: true, cell: (batch) => money(batch.tenora.cost, server.currency) },
        { head: "Created", cell: (batch) => time(batch.created_at) },
        { head: "Expected", cell: (batch) => time(batch.tenora.expected_at) },
        ...(actions === undefined ? [] : [{ head: "Actions", cell: actions }]),
      ]}
    />
  );
}

function BatchState({ batch }: { batch: AnyBatch }) {
  const cause = batch.tenora.blocked ?? batch.tenora.reason;
  return (
    <>
      <Badge state={batch.status} />
      {cause !== null && <div className="quiet text">{cause.message}</div>}
      {"errors" in batch && batch.errors != null && (
        <div className="quiet text">
          {batch.errors.data
            .slice(0, 3)
            .map((problem) => problem.message)
            .join(" ")}
        </div>
      )}
    </>
  );
}

function Progress({ counts }: { counts: Schemas["BatchCounts"] }) {
  const ended = counts.completed + counts.failed;
  return (
    <>
      <progress className="bar" aria-label="Answered" value={ended} max={counts.total || 1} />
      <span className="quiet">
        {count(ended)} of {count(counts.total)}
        {counts.failed > 0 && `, ${count(counts.failed)} failed`}
      </span>
    </>
  );
}
