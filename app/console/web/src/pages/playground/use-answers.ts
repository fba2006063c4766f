import { useEffect, useRef, useState } from "react";
import { useActor } from "./actor";
import { type Answer, type Settings, WAITING, ask } from "./request";

export interface Question {
  model: string;
  settings: Settings;
}

/** Run questions and keep their answers, by their places in the list. At most `atOnce` run at the same time. */
export function useAnswers(atOnce = 4) {
  const [answers, setAnswers] = useState<readonly Answer[]>([]);
  const [isRunning, setRunning] = useState(false);
  const actor = useActor();
  const abort = useRef<AbortController | null>(null);

  useEffect(() => () => abort.current?.abort(), []);

  async function run(questions: readonly Question[]): Promise<void> {
    const controller = new AbortController();
    abort.current = controller;
    setAnswers(questions.map(() => WAITING));
    setRunning(true);
    const pending = questions.entries();
    const worker = async () => {
      for (const [index, { model, settings }] of pending) {
        if (controller.signal.aborted) return;
        const onAnswer = (answer: Answer) => setAnswers((before) => before.with(index, answer));
        await ask(model, settings, actor, onAnswer, controller.signal);
      }
    };
    await Promise.all(Array.from({ length: atOnce }, worker));
    if (controller.signal.aborted) {
      setAnswers((before) =>
        before.map((answer) => (answer.state === "waiting" ? { ...answer, state: "stopped" } : answer)),
      );
    }
    setRunning(false);
  }

  return {
    answers,
    isRunning,
    run,
    stop: () => abort.current?.abort(),
    drop: (index: number) => setAnswers((before) => before.filter((_, at) => at !== index)),
  };
}
