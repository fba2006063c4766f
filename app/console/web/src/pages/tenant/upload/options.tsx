import { useState } from "react";
import type { Schemas } from "../../../api/client";
import { Checkbox, Field, TextArea } from "../../../components/field";

/** Description of the version, as it is being typed. Its options are null while a text cannot be read. */
export function useUploadOptions() {
  const [alias, setAlias] = useState("default");
  const [labels, setLabels] = useState("");
  const [run, setRun] = useState("");
  const [card, setCard] = useState("");
  const [allowNoEffect, setAllowNoEffect] = useState(false);
  const parsedLabels = parseLabels(labels);
  const options: Schemas["PublishOptions"] | null = parsedLabels && {
    alias: alias.trim() || null,
    labels: parsedLabels,
    card,
    training_run: run.trim() || null,
    allow_no_effect: allowNoEffect,
  };
  const texts = { alias, setAlias, labels, setLabels, run, setRun, card, setCard, allowNoEffect, setAllowNoEffect };
  return { options, texts };
}

interface Props {
  adapter: string;
  onAdapter: (adapter: string) => void;
  texts: ReturnType<typeof useUploadOptions>["texts"];
}

export function UploadFields({ adapter, onAdapter, texts }: Props) {
  return (
    <>
      <div className="fields">
        <Field
          label="Adapter"
          required
          value={adapter}
          onValue={onAdapter}
          autoComplete="off"
          hint="A new name makes a new adapter."
        />
        <Field
          label="Alias that moves"
          value={texts.alias}
          onValue={texts.setAlias}
          autoComplete="off"
          hint="Empty: no alias moves, as for a canary."
        />
        <Field
          label="Labels"
          value={texts.labels}
          onValue={texts.setLabels}
          placeholder="team=pricing, data=2026-11"
          aria-invalid={parseLabels(texts.labels) === null}
        />
        <Field
          label="Link to the training run"
          value={texts.run}
          onValue={texts.setRun}
          type="url"
          placeholder="https://…"
        />
      </div>
      <TextArea label="Card" value={texts.card} onValue={texts.setCard} />
      <Checkbox
        label="Also accept an adapter that changes nothing"
        checked={texts.allowNoEffect}
        onValue={texts.setAllowNoEffect}
      />
    </>
  );
}

/** Parse `name=value, name=value`. Null: the text is not of that form. */
function parseLabels(text: string): Record<string, string> | null {
  if (text.trim() === "") return {};
  const pairs = text.split(",").map((pair) => /^\s*([^=\s]+)\s*=\s*(.*\S)\s*$/s.exec(pair));
  if (pairs.includes(null)) return null;
  return Object.fromEntries(pairs.map((pair) => [pair?.[1], pair?.[2]]));
}
