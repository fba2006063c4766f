import { type FormEvent, useState } from "react";
import { Checkbox } from "../../components/field";
import { AnswerView } from "./answer-view";
import { CopyCode } from "./copy-code";
import { ModelField, initialModels } from "./models";
import { SettingsFields, useSettings } from "./settings";
import { useAnswers } from "./use-answers";

const MOST_COLUMNS = 4;

interface Props {
  models: readonly string[];
}

/** The same prompt to two to four models. */
export function Compare({ models }: Props) {
  const [chosen, setChosen] = useState<readonly string[] | null>(null);
  const { settings, texts } = useSettings();
  const [showDiff, setShowDiff] = useState(false);
  const { answers, isRunning, run, stop } = useAnswers();
  const columns = chosen ?? initialModels(models);

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    if (!isRunning && settings.prompt.trim() !== "") void run(columns.map((model) => ({ model, settings })));
  }

  function setModel(index: number, model: string) {
    setChosen(columns.map((before, at) => (at === index ? model : before)));
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
        <button
          type="button"
          disabled={columns.length === MOST_COLUMNS}
          onClick={() => setChosen([...columns, models[0] ?? ""])}
        >
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
              {columns.length > 2 && (
                <button
                  type="button"
                  className="small"
                  onClick={() => setChosen(columns.filter((_, at) => at !== index))}
                >
                  Remove
                </button>
              )}
            </div>
          </section>
        ))}
      </div>
    </form>
  );
}
