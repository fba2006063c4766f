import { useState } from "react";
import { type Schemas, api } from "../../../api/client";
import { ActionDialog } from "../../../components/action-dialog";
import { Field } from "../../../components/field";
import { share } from "../../../lib/format";
import { ifMatch } from "../aliases";

interface Props {
  tenant: string;
  adapter: string;
  versions: readonly number[];
  alias: Schemas["Alias"];
  onClose: () => void;
}

/** Most versions that are offered: the newest, and those that have traffic. */
const OFFERED = 10;

/** Split the traffic of an alias over versions by weight. */
export function SplitDialog({ tenant, adapter, versions, alias, onClose }: Props) {
  const offered = [...new Set([...Object.keys(alias.weights).map(Number), ...[...versions].sort((a, b) => b - a)])];
  const [given, setGiven] = useState<Readonly<Record<string, number>>>(alias.weights);
  const targets = Object.fromEntries(Object.entries(given).filter(([, weight]) => weight > 0));
  const total = Object.values(targets).reduce((sum, weight) => sum + weight, 0);

  return (
    <ActionDialog
      title={`Split ${adapter}:${alias.name}`}
      submit="Split the traffic"
      disabled={total === 0}
      onClose={onClose}
      action={() =>
        api.PUT("/admin/tenants/{tenant}/adapters/{adapter}/aliases/{alias}", {
          params: { path: { tenant, adapter, alias: alias.name }, header: ifMatch(alias) },
          body: { weights: targets },
        })
      }
    >
      <p>A request with a user always gets the same version. A weight of 0 sends nothing to a version.</p>
      <div className="fields">
        {offered.slice(0, OFFERED).map((version) => (
          <Field
            key={version}
            label={`Weight of version ${version}`}
            type="number"
            min={0}
            max={10_000}
            value={String(given[version] ?? 0)}
            onValue={(text) => setGiven({ ...given, [version]: Math.max(0, Math.trunc(Number(text))) })}
            hint={total > 0 ? share((given[version] ?? 0) / total) : undefined}
          />
        ))}
      </div>
    </ActionDialog>
  );
}
