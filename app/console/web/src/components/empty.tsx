import type { ReactNode } from "react";
import { Command } from "./command";

/** Empty list: says what belongs here, the next step, and the command that does the same. */
export function Empty({ title, command, children }: { title: string; command?: string; children?: ReactNode }) {
  return (
    <section className="empty">
      <h2>{title}</h2>
      {children}
      {command !== undefined && (
        <>
          <p>On the command line:</p>
          <Command line={command} />
        </>
      )}
    </section>
  );
}
