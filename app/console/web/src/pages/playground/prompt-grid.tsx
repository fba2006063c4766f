import { type FormEvent, useState } from "react";
import { FileField } from "../../components/file-field";
import { ErrorNotice } from "../../components/error-notice";
import { Table } from "../../components/table";
import { csv } from "../../lib/csv";
import { download } from "../../lib/download";
import { ModelField, initialModels } from "./models";
import { MOST_PROMPTS, promptsOf } from "./prompts";
import type { Answer } from "./request";
import { SettingsFields, useSettings } from "./settings";
import { useAnswers } from "./use-answers";

const AT_ONCE = 2;
const MOST_MODELS = 4;

interface Props {
  models: readonly string[];
}

/** Up to 20 prompts of a file, each to all models, as a table. */
export function PromptGrid({ models }: Props) {
  const [chosen, setChosen] = useState<readonly string[] | null>(null);
  const [prompts, setPrompts] = useState<readonly string[]>([]);
  const [asked, setAsked] = useState<{ prompts: readonly string[]; columns: readonly string[] } | null>(null);
  const [error, setError] = useState<unknown>(null);
  const { settings, texts } = useSettings();
  const { answers, isRunning, run, stop } = useAnswers(AT_ONCE);
  const columns = chosen ?? initialModels(models);

  async function onFile(file: File | undefined) {
    if (file === undefined) return;
    try {
      setPrompts(await promptsOf(file));
      setError(null);
    } catch (reason) {
      setPrompts([]);
      setError(reason);
    }
  }

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    setAsked({ prompts, columns });
    void run(prompts.flatMap((prompt) => columns.map((model) => ({ model, settings: { ...settings, prompt } }))));
  }

  return (
    <form onSubmit={onSubmit} aria-label="Prompts from a file">
      <FileField
        label="File of prompts"
        accept=".txt,.jsonl,.json"
        hint={`One prompt a line, at most ${MOST_PROMPTS}; or JSON lines with a prompt.`}
        onFiles={(files) => void onFile(files[0])}
      />
      {error !== null && <ErrorNotice error={error} />}
      <div className="fields">
        {columns.map((model, index) => (
          <ModelField
            key={index}
            label={`Model ${index + 1}`}
            value={model}
            onValue={(name) => setChosen(columns.map((before, at) => (at === index ? name : before)))}
          />
        ))}
      </div>
      <SettingsFields texts={texts} withPrompt={false} />
      <div className="row">
        <button type="submit" className="primary" disabled={isRunning || prompts.length === 0}>
          Ask {prompts.length} prompts
        </button>
        <button type="button" disabled={!isRunning} onClick={stop}>
          Stop
        </button>
        <button
          type="button"
          disabled={columns.length === MOST_MODELS}
          onClick={() => setChosen([...columns, models[0] ?? ""])}
        >
          Add a model
        </button>
        <button
          type="button"
          disabled={asked === null || isRunning}
          onClick={() => asked !== null && save(asked, answers)}
        >
          Download as CSV
        </button>
      </div>
      {asked !== null && <Grid {...asked} answers={answers} />}
    </form>
  );
}

interface GridProps {
  prompts: readonly string[];
  columns: readonly string[];
  answers: readonly Answer[];
}

function Grid({ prompts, columns, answers }: GridProps) {
  return (
    <Table
      caption="Answers"
      rows={prompts.map((prompt, row) => ({ prompt, row }))}
      rowKey={({ row }) => row}
      columns={[
        { head: "Prompt", cell: ({ prompt }) => <div className="text">{prompt}</div> },
        ...columns.map((model, column) => ({
          head: `${column + 1}: ${model}`,
          cell: ({ row }: { row: number }) => <Cell answer={answers[row * columns.length + column]} />,
        })),
      ]}
    />
  );
}

function Cell({ answer }: { answer: Answer | undefined }) {
  if (answer === undefined) return null;
  if (answer.error !== null) return <span className="text">Failed: {answer.error.message}</span>;
  return answer.state === "waiting" ? "…" : <div className="text">{answer.text}</div>;
}

function save({ prompts, columns }: Omit<GridProps, "answers">, answers: readonly Answer[]) {
  const rows = prompts.map((prompt, row) => [
    prompt,
    ...columns.map((_, column) => answers[row * columns.length + column]?.text ?? ""),
  ]);
  download("answers.csv", csv([["prompt", ...columns], ...rows]), "text/csv");
}
