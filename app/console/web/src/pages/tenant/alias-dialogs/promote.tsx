import { useState } from "react";
import { type Schemas, api } from "../../../api/client";
import { ActionDialog } from "../../../components/action-dialog";
import { Field, Select } from "../../../components/field";
import { weights } from "../../../lib/format";
import { ifMatch } from "../aliases";

interface Props {
  tenant: string;
  adapter: string;
  versions: readonly number[];
  /** The alias to move; null creates one. */
  alias: Schemas["Alias"] | null;
  /** Version that is chosen at first; default: the newest. */
  version?: number;
  onClose: () => void;
}

/** Send all traffic of an alias to one version. */
export function PromoteDialog({ tenant, adapter, versions, alias, version, onClose }: Props) {
  const newestFirst = [...versions].sort((a, b) => b - a);
  const [name, setName] = useState("default");
  const [target, setTarget] = useState(String(version ?? newestFirst[0] ?? ""));
  const aliasName = alias?.name ?? name.trim();

  return (
    <ActionDialog
      title={alias === null ? "Promote a version" : `Promote ${adapter}:${alias.name}`}
      submit="Promote"
      disabled={aliasName === "" || target === ""}
      onClose={onClose}
      action={() =>
        api.PUT("/admin/tenants/{tenant}/adapters/{adapter}/aliases/{alias}", {
          params: {
            path: { tenant, adapter, alias: aliasName },
            header: alias === null ? {} : ifMatch(alias),
          },
          body: { version: Number(target) },
        })
      }
    >
      {alias === null ? (
        <Field label="Alias" value={name} onValue={setName} hint="An alias of this name moves; a new one is created." />
      ) : (
        <p>Now: {weights(alias.weights)}. A running canary of the alias ends.</p>
      )}
      <Select
        label="Version"
        value={target}
        onValue={setTarget}
        options={newestFirst.map((number) => [String(number), `version ${number}`] as const)}
      />
    </ActionDialog>
  );
}
