import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import type { Schemas } from "../api/client";
import { NONE, time } from "../lib/format";
import { ActionDialog } from "./action-dialog";
import { Badge } from "./badge";
import { CopyButton } from "./copy-button";
import { Dialog } from "./dialog";
import { Empty } from "./empty";
import { Checkbox, Field, Select } from "./field";
import { type PageOf, Paged, usePages } from "./paged";
import { Table } from "./table";
import { ErrorNotice } from "./error-notice";

type Key = Schemas["Key"];
type NewKey = Schemas["NewKey"];

/** Calls on one owner's keys: a tenant's by itself or by the platform, or the platform's. */
export interface KeyCalls {
  queryKey: readonly unknown[];
  list: (cursor: string | undefined) => Promise<PageOf<Key>>;
  create: (body: Schemas["KeyCreate"]) => Promise<NewKey>;
  revoke: (id: string) => Promise<unknown>;
  /** Absent where the caller may not rotate keys. */
  rotate?: (id: string) => Promise<NewKey>;
  scopes: readonly string[];
  command: string;
}

const LIFETIMES = [
  ["", "never"],
  ["604800", "in 7 days"],
  ["2592000", "in 30 days"],
  ["7776000", "in 90 days"],
  ["31536000", "in 1 year"],
] as const;

/** List of keys, with the dialogs that create, rotate and revoke them. */
export function KeyManager({ calls }: { calls: KeyCalls }) {
  const [creating, setCreating] = useState(false);
  const [revoking, setRevoking] = useState<Key | null>(null);
  const [shown, setShown] = useState<NewKey | null>(null);
  const query = usePages(["keys", ...calls.queryKey], calls.list);
  const rotate = useMutation({ mutationFn: (id: string) => calls.rotate?.(id) ?? Promise.reject(), onSuccess: setShown });

  return (
    <>
      <p>
        <button type="button" className="primary" onClick={() => setCreating(true)}>
          Create a key…
        </button>
      </p>
      {rotate.error !== null && <ErrorNotice error={rotate.error} />}
      <Paged query={query}>
        {(keys) =>
          keys.length === 0 ? (
            <Empty title="No keys" command={calls.command}>
              <p>Create the first key. It is shown once.</p>
            </Empty>
          ) : (
            <KeyTable keys={keys} onRevoke={setRevoking} onRotate={calls.rotate && ((key) => rotate.mutate(key.id))} />
          )
        }
      </Paged>
      {creating && <CreateDialog calls={calls} onCreated={setShown} onClose={() => setCreating(false)} />}
      {shown !== null && <NewKeyDialog created={shown} onClose={() => setShown(null)} />}
      {revoking !== null && (
        <ActionDialog
          title={`Revoke ${revoking.name}`}
          submit="Revoke the key"
          confirm={revoking.name}
          action={() => calls.revoke(revoking.id)}
          onClose={() => setRevoking(null)}
        >
          <p>
            The key <code>{revoking.id}</code> stops working within a second on every server. Its running answers, event feeds
            and console sessions end.
          </p>
        </ActionDialog>
      )}
    </>
  );
}

interface TableProps {
  keys: readonly Key[];
  onRevoke: (key: Key) => void;
  onRotate: ((key: Key) => void) | undefined;
}

function KeyTable({ keys, onRevoke, onRotate }: TableProps) {
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
        { head: "Restricted to", cell: (key) => [...(key.adapters ?? []), ...(key.addresses ?? [])].join(", ") || NONE },
        { head: "Last used", cell: (key) => time(key.last_used_at) },
        { head: "Expires", cell: (key) => time(key.expires_at) },
        {
          head: "Actions",
          cell: (key) =>
            stateOf(key) === "active" && (
              <div className="row">
                {onRotate !== undefined && (
                  <button type="button" className="small" aria-label={`Rotate ${key.name}`} onClick={() => onRotate(key)}>
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

interface CreateProps {
  calls: KeyCalls;
  onCreated: (key: NewKey) => void;
  onClose: () => void;
}

function CreateDialog({ calls, onCreated, onClose }: CreateProps) {
  const [name, setName] = useState("");
  const [owner, setOwner] = useState("");
  const [scopes, setScopes] = useState<readonly string[]>(calls.scopes.slice(0, 1));
  const [lifetime, setLifetime] = useState("7776000");
  const [adapters, setAdapters] = useState("");

  async function create() {
    const names = adapters.split(",").map((adapter) => adapter.trim()).filter(Boolean);
    const restriction = names.length > 0 ? { adapters: names } : {};
    const expiry = lifetime === "" ? {} : { expires_in_s: Number(lifetime) };
    onCreated(
      await calls.create({ name: name.trim(), owner: owner.trim() || null, scopes: [...scopes], ...restriction, ...expiry }),
    );
  }

  function toggle(scope: string, on: boolean) {
    setScopes(on ? [...scopes, scope] : scopes.filter((other) => other !== scope));
  }

  return (
    <ActionDialog title="Create a key" submit="Create the key" disabled={name.trim() === "" || scopes.length === 0} action={create} onClose={onClose}>
      <Field label="Name" value={name} onValue={setName} autoComplete="off" required hint="The application or the job that uses it." />
      <Field label="Owner" value={owner} onValue={setOwner} autoComplete="off" hint="The person that the audit trail shows." />
      <fieldset>
        <legend>Scopes</legend>
        {calls.scopes.map((scope) => (
          <Checkbox key={scope} label={scope} checked={scopes.includes(scope)} onValue={(on) => toggle(scope, on)} />
        ))}
      </fieldset>
      <Select label="Expires" value={lifetime} onValue={setLifetime} options={LIFETIMES} />
      <Field label="Only these adapters" value={adapters} onValue={setAdapters} placeholder="pricing, quotes" hint="Empty: every adapter that the scopes allow." />
    </ActionDialog>
  );
}

function NewKeyDialog({ created, onClose }: { created: NewKey; onClose: () => void }) {
  return (
    <Dialog title={`The key ${created.name}`} onClose={onClose}>
      <p>Copy it now: it is shown once and cannot be shown again.</p>
      <div className="command">
        <pre tabIndex={0} aria-label="New key">
          <code>{created.key}</code>
        </pre>
        <CopyButton text={created.key} />
      </div>
    </Dialog>
  );
}
