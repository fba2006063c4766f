import { Badge } from "../../components/badge";
import { ErrorNotice } from "../../components/error-notice";
import { Facts } from "../../components/facts";
import { wordDiff } from "../../lib/diff";
import { count, number, seconds } from "../../lib/format";
import type { Answer } from "./request";
import { useCost } from "./use-cost";

interface Props {
  answer: Answer | undefined;
  /** Text whose words are compared with the answer's. */
  compareWith?: string | undefined;
}

/** Answer of one model with its measurements. */
export function AnswerView({ answer, compareWith }: Props) {
  return (
    <>
      <div
        className="answer text"
        tabIndex={0}
        role="group"
        aria-label="Answer"
        aria-busy={answer?.state === "streaming"}
      >
        {answer !== undefined && <AnswerText text={answer.text} compareWith={compareWith} />}
      </div>
      {answer?.error != null && <ErrorNotice error={answer.error} />}
      {answer !== undefined && <Measurements answer={answer} />}
    </>
  );
}

function AnswerText({ text, compareWith }: { text: string; compareWith: string | undefined }) {
  const parts = compareWith === undefined ? null : wordDiff(compareWith, text);
  if (parts === null) return text;
  return parts.map((part, index) => {
    if (part.kind === "added") return <ins key={index}>{part.text}</ins>;
    if (part.kind === "removed") return <del key={index}>{part.text}</del>;
    return <span key={index}>{part.text}</span>;
  });
}

function Measurements({ answer }: { answer: Answer }) {
  const cost = useCost(answer);
  return (
    <Facts
      facts={[
        ["State", <Badge state={answer.state} />],
        ["Answered by", <code>{answer.version ?? "base"}</code>],
        ["First token", seconds(answer.ttftMs === null ? null : answer.ttftMs / 1000)],
        ["Load", answer.loadMs === null ? "none" : seconds(answer.loadMs / 1000)],
        ["Tokens", `${count(answer.promptTokens)} in, ${count(answer.outputTokens)} out`],
        ["Tokens/s", number(answer.tokensPerSecond)],
        ["Cost", cost],
      ]}
    />
  );
}
