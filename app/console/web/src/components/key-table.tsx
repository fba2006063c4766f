import type { Schemas } from "../api/client";
import { NONE, time } from "../lib/format";
import { Badge } from "./badge";
import { Table } from "./table";

type Key = Schemas["Key"];

interface TableProps {
  keys: readonly Key[];
  onRevoke: (key: Key) => void;
  onRotate: ((key: Key) => void) | undefined;
}

export function KeyTable({ keys, onRevoke, onRotate }: TableProps) {
  return (
    <Table
      caption="Keys"
      rows={keys}
      rowKey={(key) => key.id}
      columns={[
        { head: "Name", cell: (key) => key.name },
        { head: "Owner", cell: (key) => key.owner ?? NONE },
        { head: "Id", cell: (key) => <code>{key.id}</code> },
        { head: "State", cell: (key) => <Badge state={stateOf(key)} /> },
        { head: "Scopes", cell: (key) => key.scopes.join(", ") },
        {
          head: "Restricted to",
          cell: (key) => [...(key.adapters ?? []), ...(key.addresses ?? [])].join(", ") || NONE,
        },
        { head: "Last used", cell: (key) => time(key.last_used_at) },
        { head: "Expires", cell: (key) => time(key.expires_at) },
        {
          head: "Actions",
          cell: (key) =>
            stateOf(key) === "active" && (
              <div className="row">
                {onRotate !== undefined && (
                  <button
                    type="button"
                    className="small"
                    aria-label={`Rotate ${key.name}`}
                    onClick={() => onRotate(key)}
                  >
                    Rotate
                  </button>
                )}
                <button type="button" className="small" aria-label={`Revoke ${key.name}`} onClick={() => onRevoke(key)}>
                  Revoke…
                </button>
              </div>
            ),
        },
      ]}
    />
  );
}

function stateOf(key: Key): string {
  if (key.revoked_at !== null) return "revoked";
  return key.expires_at !== null && Date.parse(key.expires_at) <= Date.now() ? "expired" : "active";
}
