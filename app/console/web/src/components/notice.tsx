import type { ReactNode } from "react";

export type Tone = "info" | "success" | "warning" | "error";

/** Box with a message. Errors are announced at once by screen readers, other tones when they are idle. */
export function Notice({ tone, title, children }: { tone: Tone; title: string; children?: ReactNode }) {
  return (
    <section className={`notice notice-${tone}`} role={tone === "error" ? "alert" : "status"}>
      <strong>{title}</strong>
      {children}
    </section>
  );
}
