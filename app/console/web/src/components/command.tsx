import { CopyButton } from "./copy-button";

/** Command line that does the same, with a button to copy it. */
export function Command({ line }: { line: string }) {
  return (
    <div className="command">
      <pre tabIndex={0} aria-label="Command">
        <code>{line}</code>
      </pre>
      <CopyButton text={line} />
    </div>
  );
}
