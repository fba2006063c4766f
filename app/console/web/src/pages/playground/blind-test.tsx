import { type FormEvent, useState } from "react";
import { Notice } from "../../components/notice";
import { Table } from "../../components/table";
import { share } from "../../lib/format";
import type { Answer } from "./request";
import { ModelField, initialModels } from "./models";
import { SettingsFields, useSettings } from "./settings";
import { useAnswers } from "./use-answers";

interface Props {
  models: readonly string[];
}

/** Vote of one round: the model that won, or null for a tie. */
type Vote = string | null;

/** Two models answer without their names, in a random order. A vote shows which was which. */
export function BlindTest({ models }: Props) {
  // A newer list of models changes neither: the user may be typing, and the votes are about these two.
  const [[a, b], setPair] = useState<readonly [string, string]>(() => initialModels(models));
  const [sides, setSides] = useState<readonly [string, string] | null>(null);
  const [voted, setVoted] = useState<Vote | undefined>(undefined);
  const [votes, setVotes] = useState<readonly Vote[]>([]);
  const { settings, texts } = useSettings();
  const { answers, isRunning, run, stop } = useAnswers();
  const canVote = sides !== null && !isRunning && voted === undefined && answers.every(({ state }) => state === "done");

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    const order = isHeads() ? ([a, b] as const) : ([b, a] as const);
    setSides(order);
    setVoted(undefined);
    void run(order.map((model) => ({ model, settings })));
  }

  function choose(pair: readonly [string, string]) {
    setPair(pair);
    setVotes([]);
  }

  function vote(winner: Vote) {
    setVoted(winner);
    setVotes([...votes, winner]);
  }

  return (
    <form onSubmit={onSubmit} aria-label="Blind A/B">
      <div className="fields">
        <ModelField label="One model" value={a} onValue={(name) => choose([name, b])} />
        <ModelField label="The other model" value={b} onValue={(name) => choose([a, name])} />
      </div>
      <SettingsFields texts={texts} withPrompt />
      <div className="row">
        <button type="submit" className="primary" disabled={isRunning || settings.prompt.trim() === "" || a === b}>
          Ask both
        </button>
        <button type="button" disabled={!isRunning} onClick={stop}>
          Stop
        </button>
      </div>
      {sides !== null && (
        <Sides sides={sides} answers={answers} isRevealed={voted !== undefined} canVote={canVote} onVote={vote} />
      )}
      {voted !== undefined && <Notice tone="info" title={voted === null ? "A tie" : `You preferred ${voted}`} />}
      {votes.length > 0 && <Tally names={[a, b]} votes={votes} />}
    </form>
  );
}

interface SidesProps {
  sides: readonly [string, string];
  answers: readonly Answer[];
  isRevealed: boolean;
  canVote: boolean;
  onVote: (winner: Vote) => void;
}

function Sides({ sides, answers, isRevealed, canVote, onVote }: SidesProps) {
  return (
    <>
      <div className="columns">
        {["Left", "Right"].map((side, index) => (
          <section key={side} className="card" aria-label={side}>
            <h2>{isRevealed ? `${side}: ${sides[index]}` : side}</h2>
            <div className="answer text" tabIndex={0} role="group" aria-label={`Answer ${side.toLowerCase()}`}>
              {answers[index]?.text}
              {answers[index]?.error?.message}
            </div>
          </section>
        ))}
      </div>
      <div className="row" role="group" aria-label="Vote">
        <button type="button" disabled={!canVote} onClick={() => onVote(sides[0])}>
          Left is better
        </button>
        <button type="button" disabled={!canVote} onClick={() => onVote(null)}>
          Equal
        </button>
        <button type="button" disabled={!canVote} onClick={() => onVote(sides[1])}>
          Right is better
        </button>
      </div>
    </>
  );
}

function Tally({ names, votes }: { names: readonly [string, string]; votes: readonly Vote[] }) {
  const rows = [...names, null].map((name) => ({ name, count: votes.filter((vote) => vote === name).length }));
  return (
    <Table
      caption="Votes"
      showCaption
      rows={rows}
      rowKey={(row) => row.name ?? ""}
      columns={[
        { head: "Model", cell: (row) => row.name ?? "equal" },
        { head: "Votes", numeric: true, cell: (row) => row.count },
        { head: "Share", numeric: true, cell: (row) => share(row.count / votes.length) },
      ]}
    />
  );
}

function isHeads(): boolean {
  return (crypto.getRandomValues(new Uint8Array(1))[0] ?? 0) % 2 === 0;
}
