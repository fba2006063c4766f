import { useState } from "react";
import { type Schemas, api } from "../../../api/client";
import { ActionDialog } from "../../../components/action-dialog";
import { Dialog } from "../../../components/dialog";
import { Select } from "../../../components/field";
import { weights } from "../../../lib/format";
import { ifMatch } from "../aliases";
import { PolicyFields, usePolicy } from "./policy";

interface Props {
  tenant: string;
  adapter: string;
  versions: readonly number[];
  alias: Schemas["Alias"];
  onClose: () => void;
}

/** Start a canary: more and more traffic for a new version, and back by itself if it does worse. */
export function CanaryDialog({ tenant, adapter, versions, alias, onClose }: Props) {
  const candidates = versions.filter((version) => !(version in alias.weights)).sort((a, b) => b - a);
  const [version, setVersion] = useState(String(candidates[0] ?? ""));
  const form = usePolicy();

  async function start() {
    if (form.policy === null) return;
    await api.PUT("/admin/tenants/{tenant}/adapters/{adapter}/aliases/{alias}/canary", {
      params: { path: { tenant, adapter, alias: alias.name }, header: ifMatch(alias) },
      body: { version: Number(version), policy: form.policy },
    });
  }

  if (candidates.length === 0) return <NoCandidate adapter={adapter} onClose={onClose} />;
  return (
    <ActionDialog
      title={`Canary on ${adapter}:${alias.name}`}
      submit="Start the canary"
      disabled={form.policy === null}
      onClose={onClose}
      action={start}
    >
      <p>Now: {weights(alias.weights)}. The alias returns to that by itself if the new version does worse.</p>
      <Select
        label="New version"
        value={version}
        onValue={setVersion}
        options={candidates.map((number) => [String(number), `version ${number}`] as const)}
      />
      <PolicyFields {...form} />
    </ActionDialog>
  );
}

function NoCandidate({ adapter, onClose }: { adapter: string; onClose: () => void }) {
  return (
    <Dialog title="No version for a canary" onClose={onClose}>
      <p>A canary needs a version of {adapter} without traffic of this alias. Upload one without moving the alias.</p>
    </Dialog>
  );
}
