import type { Schemas } from "../api/client";
import { CopyButton } from "./copy-button";
import { Dialog } from "./dialog";

/** A new key, which is shown once. */
export function NewKeyDialog({ created, onClose }: { created: Schemas["NewKey"]; onClose: () => void }) {
  return (
    <Dialog title={`The key ${created.name}`} onClose={onClose}>
      <p>Copy it now: it is shown once and cannot be shown again.</p>
      <div className="command">
        <pre tabIndex={0} aria-label="New key">
          <code>{created.key}</code>
        </pre>
        <CopyButton text={created.key} />
      </div>
    </Dialog>
  );
}
