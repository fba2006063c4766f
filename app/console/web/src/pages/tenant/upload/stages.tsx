import { bytes } from "../../../lib/format";
import { STAGES, type Stage } from "./run";

export interface Progress {
  stage: Stage;
  sent: number;
  total: number;
}

/** Stages of an upload: those that are over, the one that runs, and the bytes sent. */
export function Stages({
  progress,
  outcome,
}: {
  progress: Progress;
  outcome: "pending" | "error" | "success" | "idle";
}) {
  const current = outcome === "success" ? STAGES.length : STAGES.indexOf(progress.stage);
  return (
    <section aria-label="Progress" className="card">
      <ol className="stages">
        {STAGES.map((stage, index) => (
          <li key={stage} aria-current={index === current ? "step" : undefined}>
            <span aria-hidden="true">
              {index < current ? "✓" : index > current ? "·" : outcome === "error" ? "✗" : "…"}
            </span>{" "}
            {stage}
          </li>
        ))}
      </ol>
      {outcome === "pending" &&
        progress.total > 0 &&
        (progress.stage === "checking" || progress.stage === "sending") && (
          <>
            <progress
              aria-label={progress.stage === "sending" ? "Sent" : "Hashed"}
              value={progress.sent}
              max={progress.total}
            />
            <p className="quiet">
              {bytes(progress.sent)} of {bytes(progress.total)}
            </p>
          </>
        )}
    </section>
  );
}
