import { useState } from "react";
import { Page } from "../../components/page";
import { useParam } from "../../lib/params";
import { useMe } from "../../session";
import { BlindTest } from "./blind-test";
import { Compare } from "./compare";
import { PromptGrid } from "./prompt-grid";
import { ModelNames, useModels } from "./models";
import { useActor } from "./actor";

const MODES = [
  ["compare", "Compare"],
  ["grid", "Prompts from a file"],
  ["blind", "Blind A/B"],
] as const;
type Mode = (typeof MODES)[number][0];

/** Playground: the same prompt to several models, a file of prompts as a grid, or a blind comparison. */
export function Playground() {
  const tenant = useParam("tenant");
  const { isPlatform } = useMe();
  return (
    <Page title="Playground" scopes={[isPlatform ? "admin" : "inference"]}>
      <Modes tenant={tenant} />
    </Page>
  );
}

function Modes({ tenant }: { tenant: string }) {
  const [mode, setMode] = useState<Mode>("compare");
  const models = useModels(tenant);
  const actor = useActor(tenant);
  const props = { actor, models };
  return (
    <>
      <div className="row" role="group" aria-label="Kind of comparison">
        {MODES.map(([name, text]) => (
          <button key={name} type="button" aria-pressed={mode === name} onClick={() => setMode(name)}>
            {text}
          </button>
        ))}
      </div>
      <ModelNames models={models} />
      {mode === "compare" && <Compare {...props} />}
      {mode === "grid" && <PromptGrid {...props} />}
      {mode === "blind" && <BlindTest {...props} />}
    </>
  );
}
