import { useState } from "react";
import type { Schemas } from "../../../api/client";
import { Field } from "../../../components/field";

const STEPS = "5% 300s, 25% 300s, 100% 300s";

/** Policy of a canary, as it is being typed. Null while the steps cannot be read. */
export function usePolicy() {
  const [steps, setSteps] = useState(STEPS);
  const [minRequests, setMinRequests] = useState("20");
  const [errorRate, setErrorRate] = useState("2");
  const [emptyRate, setEmptyRate] = useState("2");
  const [ttftRatio, setTtftRatio] = useState("1.5");
  const parsed = parseSteps(steps);
  const policy: Schemas["CanaryPolicy"] | null = parsed && {
    steps: parsed,
    min_requests: Number(minRequests),
    max_error_rate: Number(errorRate) / 100,
    max_empty_rate: Number(emptyRate) / 100,
    max_ttft_ratio: ttftRatio.trim() === "" ? null : Number(ttftRatio),
  };
  const fields = [
    ["Answers before a step ends", minRequests, setMinRequests],
    ["More errors allowed, in %", errorRate, setErrorRate],
    ["More empty answers allowed, in %", emptyRate, setEmptyRate],
    ["TTFT p95, at most times the old", ttftRatio, setTtftRatio],
  ] as const;
  return { policy, steps, setSteps, fields };
}

/** Inputs of a canary's policy. */
export function PolicyFields({ policy, steps, setSteps, fields }: ReturnType<typeof usePolicy>) {
  return (
    <>
      <Field
        label="Steps"
        value={steps}
        onValue={setSteps}
        aria-invalid={policy === null}
        hint="Share of the new version, rising, and how long the step lasts at least."
      />
      <div className="fields">
        {fields.map(([label, value, onValue]) => (
          <Field key={label} label={label} type="number" min={0} step="any" value={value} onValue={onValue} />
        ))}
      </div>
    </>
  );
}

/** Parse `5% 300s, 100% 5m`. Null: the text is not of that form. */
function parseSteps(text: string): { weight: number; seconds: number }[] | null {
  const factors = { s: 1, m: 60, h: 3600 } as const;
  const steps = text.split(",").map((step) => {
    const match = /^\s*(\d{1,3})\s*%\s+(\d+)\s*([smh])\s*$/.exec(step);
    return match && { weight: Number(match[1]), seconds: Number(match[2]) * factors[match[3] as "s" | "m" | "h"] };
  });
  return steps.every((step) => step !== null) ? steps : null;
}
