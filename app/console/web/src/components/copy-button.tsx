import { useState } from "react";

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [shown, setShown] = useState(label);

  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      setShown("Copied");
    } catch {
      setShown("Select the text and copy it");
    }
    setTimeout(() => setShown(label), 2000);
  }

  return (
    <button type="button" className="small" onClick={() => void copy()}>
      <span aria-live="polite">{shown}</span>
    </button>
  );
}
