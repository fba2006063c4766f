import { NONE } from "../lib/format";

/** State before and after a change, as JSON. */
export function Changes({ before, after }: { before: unknown; after: unknown }) {
  if (before == null && after == null) return NONE;
  return (
    <details>
      <summary>{before == null ? "created" : after == null ? "removed" : "changed"}</summary>
      {before != null && (
        <del>
          <code>{JSON.stringify(before)}</code>
        </del>
      )}{" "}
      {after != null && (
        <ins>
          <code>{JSON.stringify(after)}</code>
        </ins>
      )}
    </details>
  );
}
