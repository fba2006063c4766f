import { type FormEvent, useState } from "react";
import { FileField } from "../../components/file-field";
import { ErrorNotice } from "../../components/error-notice";
import { Table } from "../../components/table";
import { csv } from "../../lib/csv";
import { download } from "../../lib/download";
import { ModelField } from "./models";
import { MOST_PROMPTS, promptsOf } from "./prompts";
import type { Answer } from "./request";
import { SettingsFields, useSettings } from "./settings";
import { useAnswers } from "./use-answers";
import { MOST_COLUMNS, useColumns } from "./use-columns";

const AT_ONCE = 2;

interface Questions {
  prompts: readonly string[];
  columns: readonly string[];
}

/** Up to 20 prompts of a file, each to all models, as a table. */
export function PromptGrid({ models }: { models: readonly string[] }) {
  const { columns, setModel, add } = useColumns(models);
  const { prompts, error, onFiles } = usePrompts();
  const [asked, setAsked] = useState<Questions | null>(null);
  const { settings, texts } = useSettings();
  const { answers, isRunning, run, stop } = useAnswers(AT_ONCE);

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
        onFiles={onFiles}
      />
      {error !== null && <ErrorNotice error={error} />}
      <div className="fields">
        {columns.map((model, at) => (
          <ModelField key={at} label={`Model ${at + 1}`} value={model} onValue={(name) => setModel(at, name)} />
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
        <button type="button" disabled={columns.length === MOST_COLUMNS} onClick={add}>
          Add a model
        </button>
        <button type="button" disabled={asked === null || isRunning} onClick={() => asked && save(asked, answers)}>
          Download as CSV
        </button>
      </div>
      {asked !== null && <Grid {...asked} answers={answers} />}
    </form>
  );
}

/** Prompts of the chosen file, or the error for which it cannot be used. */
function usePrompts() {
  const [prompts, setPrompts] = useState<readonly string[]>([]);
  const [error, setError] = useState<unknown>(null);

  async function read(file: File) {
    try {
      setPrompts(await promptsOf(file));
      setError(null);
    } catch (reason) {
      setPrompts([]);
      setError(reason);
    }
  }

  return { prompts, error, onFiles: (files: FileList) => files[0] && void read(files[0]) };
}

interface GridProps extends Questions {
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

function save({ prompts, columns }: Questions, answers: readonly Answer[]) {
  const rows = prompts.map((prompt, row) => [
    prompt,
    ...columns.map((_, column) => answers[row * columns.length + column]?.text ?? ""),
  ]);
  download("answers.csv", csv([["prompt", ...columns], ...rows]), "text/csv");
}
