import { useState } from "react";
import { Command } from "../../components/command";
import { Notice } from "../../components/notice";
import { Page } from "../../components/page";
import { useParam } from "../../lib/params";
import { useMe } from "../../session";
import { BlindTest } from "./blind-test";
import { Compare } from "./compare";
import { PromptGrid } from "./prompt-grid";
import { ModelNames, useModels } from "./models";

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
    <Page title="Playground" scopes={["inference"]}>
      {isPlatform ? <NoInference tenant={tenant} /> : <Modes tenant={tenant} />}
    </Page>
  );
}

function NoInference({ tenant }: { tenant: string }) {
  return (
    <Notice tone="info" title="A platform key cannot infer">
      <p>Sign in with a key of {tenant} that has the scope inference. The command for such a key:</p>
      <Command line={`tenora keys create playground --tenant ${tenant} --scope inference --scope adapters:read`} />
    </Notice>
  );
}

function Modes({ tenant }: { tenant: string }) {
  const [mode, setMode] = useState<Mode>("compare");
  const models = useModels(tenant);
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
      {mode === "compare" && <Compare models={models} />}
      {mode === "grid" && <PromptGrid models={models} />}
      {mode === "blind" && <BlindTest models={models} />}
    </>
  );
}
