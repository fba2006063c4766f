import { useState } from "react";
import type { Schemas } from "../api/client";
import { ActionDialog } from "./action-dialog";
import { Checkbox, Field, Select } from "./field";
import type { KeyCalls } from "./key-manager";

const LIFETIMES = [
  ["", "never"],
  ["604800", "in 7 days"],
  ["2592000", "in 30 days"],
  ["7776000", "in 90 days"],
  ["31536000", "in 1 year"],
] as const;

interface CreateProps {
  calls: KeyCalls;
  onCreated: (key: Schemas["NewKey"]) => void;
  onClose: () => void;
}

/** Dialog that creates a key with some of the scopes that the caller may give. */
export function CreateKeyDialog({ calls, onCreated, onClose }: CreateProps) {
  const [name, setName] = useState("");
  const [owner, setOwner] = useState("");
  const [scopes, setScopes] = useState<readonly string[]>(calls.scopes.slice(0, 1));
  const [lifetime, setLifetime] = useState("7776000");
  const [adapters, setAdapters] = useState("");

  async function create() {
    const names = adapters
      .split(",")
      .map((adapter) => adapter.trim())
      .filter(Boolean);
    const restriction = names.length > 0 ? { adapters: names } : {};
    const expiry = lifetime === "" ? {} : { expires_in_s: Number(lifetime) };
    onCreated(
      await calls.create({
        name: name.trim(),
        owner: owner.trim() || null,
        scopes: [...scopes],
        ...restriction,
        ...expiry,
      }),
    );
  }

  function toggle(scope: string, on: boolean) {
    setScopes(on ? [...scopes, scope] : scopes.filter((other) => other !== scope));
  }

  return (
    <ActionDialog
      title="Create a key"
      submit="Create the key"
      disabled={name.trim() === "" || scopes.length === 0}
      action={create}
      onClose={onClose}
    >
      <Field
        label="Name"
        value={name}
        onValue={setName}
        autoComplete="off"
        required
        hint="The application or the job that uses it."
      />
      <Field
        label="Owner"
        value={owner}
        onValue={setOwner}
        autoComplete="off"
        hint="The person that the audit trail shows."
      />
      <fieldset>
        <legend>Scopes</legend>
        {calls.scopes.map((scope) => (
          <Checkbox key={scope} label={scope} checked={scopes.includes(scope)} onValue={(on) => toggle(scope, on)} />
        ))}
      </fieldset>
      <Select label="Expires" value={lifetime} onValue={setLifetime} options={LIFETIMES} />
      <Field
        label="Only these adapters"
        value={adapters}
        onValue={setAdapters}
        placeholder="pricing, quotes"
        hint="Empty: every adapter that the scopes allow."
      />
    </ActionDialog>
  );
}
