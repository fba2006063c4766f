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
  alias: Schemas["Alias"];
  onClose: () => void;
}

const STEPS = "5% 300s, 25% 300s, 100% 300s";

/** Start a canary: more and more traffic for a new version, and back by itself if it does worse. */
export function CanaryDialog({ tenant, adapter, versions, alias, onClose }: Props) {
  const candidates = versions.filter((version) => !(version in alias.weights)).sort((a, b) => b - a);
  const [version, setVersion] = useState(String(candidates[0] ?? ""));
  const [steps, setSteps] = useState(STEPS);
  const [minRequests, setMinRequests] = useState("20");
  const [errorRate, setErrorRate] = useState("2");
  const [emptyRate, setEmptyRate] = useState("2");
  const [ttftRatio, setTtftRatio] = useState("1.5");
  const parsed = parseSteps(steps);

  if (candidates.length === 0) return <NoCandidate adapter={adapter} onClose={onClose} />;
  return (
    <ActionDialog
      title={`Canary on ${adapter}:${alias.name}`}
      submit="Start the canary"
      disabled={parsed === null}
      onClose={onClose}
      action={() =>
        api.PUT("/admin/tenants/{tenant}/adapters/{adapter}/aliases/{alias}/canary", {
          params: { path: { tenant, adapter, alias: alias.name }, header: ifMatch(alias) },
          body: {
            version: Number(version),
            policy: {
              steps: parsed ?? [],
              min_requests: Number(minRequests),
              max_error_rate: Number(errorRate) / 100,
              max_empty_rate: Number(emptyRate) / 100,
              max_ttft_ratio: ttftRatio.trim() === "" ? null : Number(ttftRatio),
            },
          },
        })
      }
    >
      <p>Now: {weights(alias.weights)}. The alias returns to that by itself if the new version does worse.</p>
      <Select
        label="New version"
        value={version}
        onValue={setVersion}
        options={candidates.map((number) => [String(number), `version ${number}`] as const)}
      />
      <Field
        label="Steps"
        value={steps}
        onValue={setSteps}
        aria-invalid={parsed === null}
        hint="Share of the new version, rising, and how long the step lasts at least."
      />
      <div className="fields">
        <Field label="Answers before a step ends" type="number" min={1} value={minRequests} onValue={setMinRequests} />
        <Field label="More errors allowed, in %" type="number" min={0} step="any" value={errorRate} onValue={setErrorRate} />
        <Field label="More empty answers allowed, in %" type="number" min={0} step="any" value={emptyRate} onValue={setEmptyRate} />
        <Field label="TTFT p95, at most times the old" type="number" min={1} step="any" value={ttftRatio} onValue={setTtftRatio} />
      </div>
    </ActionDialog>
  );
}

function NoCandidate({ adapter, onClose }: { adapter: string; onClose: () => void }) {
  return (
    <ActionDialog title="No version for a canary" submit="Close" action={async () => undefined} onClose={onClose}>
      <p>A canary needs a version of {adapter} that has no traffic of this alias yet. Upload one without moving the alias.</p>
    </ActionDialog>
  );
}

/** Parse `5% 300s, 100% 5m`. Null: the text is not of that form. */
export function parseSteps(text: string): { weight: number; seconds: number }[] | null {
  const steps = text.split(",").map((step) => /^\s*(\d{1,3})\s*%\s+(\d+)\s*(s|m|h)\s*$/.exec(step));
  const factors = { s: 1, m: 60, h: 3600 } as const;
  const parsed = steps.map((match) =>
    match === null ? null : { weight: Number(match[1]), seconds: Number(match[2]) * factors[match[3] as "s" | "m" | "h"] },
  );
  return parsed.every((step) => step !== null) ? parsed : null;
}
