import { useState } from "react";
import { Field, TextArea } from "../../components/field";
import { useMe } from "../../session";
import type { Settings } from "./request";

/** Settings of the requests with their texts, as they are being typed. */
export function useSettings() {
  const [system, setSystem] = useState("");
  const [prompt, setPrompt] = useState("");
  const [temperature, setTemperature] = useState("0");
  const [seed, setSeed] = useState("");
  const { server } = useMe();
  // The prompt needs room in the context too.
  const [maxTokens, setMaxTokens] = useState(() => String(Math.min(128, Math.floor(server.context / 2))));
  const settings: Settings = {
    system: system.trim(),
    prompt,
    temperature: optional(temperature),
    seed: optional(seed),
    maxTokens: Math.max(1, Number(maxTokens) || 1),
  };
  const texts = {
    system,
    setSystem,
    prompt,
    setPrompt,
    temperature,
    setTemperature,
    seed,
    setSeed,
    maxTokens,
    setMaxTokens,
  };
  return { settings, texts };
}

function optional(text: string): number | null {
  return text.trim() === "" || Number.isNaN(Number(text)) ? null : Number(text);
}

interface Props {
  texts: ReturnType<typeof useSettings>["texts"];
  /** Absent where the prompts come from a file. */
  withPrompt: boolean;
}

export function SettingsFields({ texts, withPrompt }: Props) {
  return (
    <>
      {withPrompt && <TextArea label="Prompt" rows={4} value={texts.prompt} onValue={texts.setPrompt} />}
      <div className="fields">
        <Field label="System prompt" value={texts.system} onValue={texts.setSystem} />
        <Field
          label="Temperature"
          type="number"
          min={0}
          max={2}
          step="any"
          value={texts.temperature}
          onValue={texts.setTemperature}
        />
        <Field label="Seed" type="number" step={1} value={texts.seed} onValue={texts.setSeed} />
        <Field label="Max tokens" type="number" min={1} step={1} value={texts.maxTokens} onValue={texts.setMaxTokens} />
      </div>
    </>
  );
}
