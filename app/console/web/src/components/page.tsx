import { type ReactNode, useEffect, useRef } from "react";
import { useMe } from "../session";
import { Notice } from "./notice";
import { Command } from "./command";

interface Props {
  title: string;
  /** Scopes of which the key needs all. A platform key with `admin` has each of them. */
  scopes?: readonly string[];
  actions?: ReactNode;
  children: ReactNode;
}

/** Page with its title. It takes the focus, so that keyboard and screen reader start there after a change of page. */
export function Page({ title, scopes = [], actions, children }: Props) {
  const heading = useRef<HTMLHeadingElement>(null);
  const { can } = useMe();
  const missing = scopes.filter((scope) => !can(scope));

  useEffect(() => {
    document.title = `${title} · Tenora`;
    heading.current?.focus({ preventScroll: true });
  }, [title]);

  return (
    <main id="content">
      <header className="page-head">
        <h1 ref={heading} tabIndex={-1}>
          {title}
        </h1>
        {missing.length === 0 && actions !== undefined && <div className="actions">{actions}</div>}
      </header>
      {missing.length === 0 ? children : <MissingScope scopes={missing} />}
    </main>
  );
}

function MissingScope({ scopes }: { scopes: readonly string[] }) {
  const { key } = useMe();
  const flags = [...key.scopes, ...scopes].map((scope) => `--scope ${scope}`).join(" ");
  return (
    <Notice tone="warning" title={`Your key lacks the scope ${scopes.join(" and ")}`}>
      <p>Ask the platform team for a key that has it, and sign in with that key. The command for it:</p>
      <Command line={`tenora keys create NAME --tenant ${key.tenant ?? "TENANT"} ${flags}`} />
    </Notice>
  );
}
