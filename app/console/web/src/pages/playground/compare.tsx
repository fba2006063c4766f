import { type FormEvent, useState } from "react";
import { Checkbox } from "../../components/field";
import { AnswerView } from "./answer-view";
import { CopyCode } from "./copy-code";
import { ModelField } from "./models";
import { SettingsFields, useSettings } from "./settings";
import { useAnswers } from "./use-answers";
import { LEAST_COLUMNS, MOST_COLUMNS, useColumns } from "./use-columns";

/** The same prompt to two to four models. */
export function Compare({ models }: { models: readonly string[] }) {
  const { columns, setModel, add, remove } = useColumns(models);
  const { settings, texts } = useSettings();
  const [showDiff, setShowDiff] = useState(false);
  const { answers, isRunning, run, stop, drop } = useAnswers();
  const canRemove = columns.length > LEAST_COLUMNS && !isRunning;

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    void run(columns.map((model) => ({ model, settings })));
  }

  function onRemove(index: number) {
    remove(index);
    drop(index);
  }

  return (
    <form onSubmit={onSubmit} aria-label="Playground">
      <SettingsFields texts={texts} withPrompt />
      <div className="row">
        <button type="submit" className="primary" disabled={isRunning || settings.prompt.trim() === ""}>
          Ask
        </button>
        <button type="button" disabled={!isRunning} onClick={stop}>
          Stop
        </button>
        <button type="button" disabled={columns.length === MOST_COLUMNS} onClick={add}>
          Add a column
        </button>
        <Checkbox label="Mark the words that differ from column 1" checked={showDiff} onValue={setShowDiff} />
      </div>
      <div className="columns">
        {columns.map((model, index) => (
          <section key={index} className="card" aria-label={`Column ${index + 1}`}>
            <ModelField label={`Model ${index + 1}`} value={model} onValue={(name) => setModel(index, name)} />
            <AnswerView answer={answers[index]} compareWith={showDiff && index > 0 ? answers[0]?.text : undefined} />
            <div className="row">
              <CopyCode model={model} settings={settings} />
              {canRemove && <RemoveButton number={index + 1} onRemove={() => onRemove(index)} />}
            </div>
          </section>
        ))}
      </div>
    </form>
  );
}

function RemoveButton({ number, onRemove }: { number: number; onRemove: () => void }) {
  return (
    <button type="button" className="small" aria-label={`Remove column ${number}`} onClick={onRemove}>
      Remove
    </button>
  );
}
