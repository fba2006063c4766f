import type { Schemas } from "../api/client";
import { NONE, time } from "../lib/format";
import { Badge } from "./badge";
import { Table } from "./table";

type Key = Schemas["Key"];

interface TableProps {
  keys: readonly Key[];
  /** Absent in a list that only shows. */
  onRevoke?: (key: Key) => void;
  onRotate?: ((key: Key) => void) | undefined;
  withTenant?: boolean;
}

/** Keys with their state; the secret is shown only when a key is created. */
export function KeyTable({ keys, onRevoke, onRotate, withTenant = false }: TableProps) {
  return (
    <Table
      caption={withTenant ? "Keys of all tenants" : "Keys"}
      rows={keys}
      rowKey={(key) => key.id}
      columns={[
        { head: "Name", cell: (key) => key.name },
        { head: "Owner", cell: (key) => key.owner ?? NONE },
        ...(withTenant ? [{ head: "Tenant", cell: (key: Key) => key.tenant ?? "platform" }] : []),
        { head: "Id", cell: (key) => <code>{key.id}</code> },
        { head: "State", cell: (key) => <Badge state={stateOf(key)} /> },
        { head: "Scopes", cell: (key) => key.scopes.join(", ") },
        { head: "Only", cell: (key) => [...(key.adapters ?? []), ...(key.addresses ?? [])].join(", ") || NONE },
        { head: "Last used", cell: (key) => time(key.last_used_at) },
        { head: "Expires", cell: (key) => time(key.expires_at) },
        ...(onRevoke === undefined
          ? []
          : [{ head: "Actions", cell: (key: Key) => <Actions value={key} onRevoke={onRevoke} onRotate={onRotate} /> }]),
      ]}
    />
  );
}

interface ActionsProps {
  value: Key;
  onRevoke: (key: Key) => void;
  onRotate: ((key: Key) => void) | undefined;
}

function Actions({ value, onRevoke, onRotate }: ActionsProps) {
  if (stateOf(value) !== "active") return null;
  return (
    <div className="row">
      {onRotate !== undefined && (
        <button type="button" className="small" aria-label={`Rotate ${value.name}`} onClick={() => onRotate(value)}>
          Rotate
        </button>
      )}
      <button type="button" className="small" aria-label={`Revoke ${value.name}`} onClick={() => onRevoke(value)}>
        Revoke…
      </button>
    </div>
  );
}

function stateOf(key: Key): string {
  if (key.revoked_at !== null) return "revoked";
  return key.expires_at !== null && Date.parse(key.expires_at) <= Date.now() ? "expired" : "active";
}
