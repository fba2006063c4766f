const TONES: Readonly<Record<string, string>> = {
  ready: "success",
  completed: "success",
  done: "success",
  finished: "success",
  promoted: "success",
  ok: "success",
  rejected: "error",
  failed: "error",
  quarantined: "error",
  rolled_back: "error",
  revoked: "error",
  not_ready: "error",
  validating: "info",
  in_progress: "info",
  running: "info",
  finalizing: "info",
  open: "info",
  slot: "info",
  pinned: "info",
  retired: "warning",
  expired: "warning",
  cancelled: "warning",
  cancelling: "warning",
  degraded: "warning",
  disabled: "warning",
};

/** State as a word; the colour only adds to it. */
export function Badge({ state }: { state: string }) {
  return <span className={`badge badge-${TONES[state] ?? "plain"}`}>{state.replaceAll("_", " ")}</span>;
}
