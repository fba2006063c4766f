import { useState } from "react";
import { Loading } from "../../components/loaded";
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
      {isPlatform && (
        <Notice tone="info" title={`You act as ${tenant}`}>
          <p>The tenant pays for the requests, and the audit trail has them under your key.</p>
        </Notice>
      )}
      <Modes tenant={tenant} />
    </Page>
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
      {models === null ? <Loading /> : <Comparison mode={mode} models={models} />}
    </>
  );
}

function Comparison({ mode, models }: { mode: Mode; models: readonly string[] }) {
  return (
    <>
      <ModelNames models={models} />
      {mode === "compare" && <Compare models={models} />}
      {mode === "grid" && <PromptGrid models={models} />}
      {mode === "blind" && <BlindTest models={models} />}
    </>
  );
}
