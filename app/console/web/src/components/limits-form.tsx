import { useState } from "react";
import type { Schemas } from "../api/client";
import { ActionDialog } from "./action-dialog";
import { Field } from "./field";

interface Props {
  title: string;
  limits: Schemas["Limits"];
  onSave: (limits: Schemas["LimitsPatch"]) => Promise<unknown>;
  onClose: () => void;
}

const COSTS = new Set(["cost_per_day", "cost_per_month"]);

/** Dialog for the limits of a tenant or a key. An empty field lifts a limit. */
export function LimitsForm({ title, limits, onSave, onClose }: Props) {
  const [texts, setTexts] = useState(() =>
    Object.fromEntries(Object.entries(limits).map(([name, value]) => [name, String(value ?? "")])),
  );
  const patch = Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, limitOf(name, text.trim())]));
  return (
    <ActionDialog title={title} submit="Set the limits" action={() => onSave(patch)} onClose={onClose}>
      <p>An empty field means no limit.</p>
      <div className="fields">
        {Object.entries(texts).map(([name, text]) => (
          <Field
            key={name}
            label={name.replaceAll("_", " ")}
            inputMode="decimal"
            value={text}
            onValue={(value) => setTexts({ ...texts, [name]: value })}
          />
        ))}
      </div>
    </ActionDialog>
  );
}

function limitOf(name: string, text: string): number | string | null {
  if (text === "") return null;
  return COSTS.has(name) ? text : Number(text);
}
