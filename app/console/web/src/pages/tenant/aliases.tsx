import { type ReactNode, useState } from "react";
import { type Schemas, api, body } from "../../api/client";
import { ActionDialog } from "../../components/action-dialog";
import { Empty } from "../../components/empty";
import { Paged, usePages } from "../../components/paged";
import { Table } from "../../components/table";
import { time, weights } from "../../lib/format";
import { useMe } from "../../session";
import { AliasCanary } from "./alias-canary";
import { CanaryDialog } from "./alias-dialogs/canary";
import { HistoryDialog } from "./alias-dialogs/history";
import { PromoteDialog } from "./alias-dialogs/promote";
import { RollbackDialog } from "./alias-dialogs/rollback";
import { SplitDialog } from "./alias-dialogs/split";

type Alias = Schemas["Alias"];

export interface AliasPath {
  tenant: string;
  adapter: string;
  alias: string;
}

interface Props {
  tenant: string;
  adapter: string;
  versions: readonly number[];
}

type Action = "promote" | "split" | "canary" | "rollback" | "history" | "delete";

const ACTIONS: readonly (readonly [action: Action, text: string])[] = [
  ["promote", "Promote…"],
  ["split", "Split…"],
  ["canary", "Canary…"],
  ["rollback", "Roll back…"],
  ["history", "History"],
  ["delete", "Delete…"],
];

/** Aliases of an adapter with their canaries, and the dialogs that change them. */
export function Aliases({ tenant, adapter, versions }: Props) {
  const { can } = useMe();
  const [open, setOpen] = useState<{ action: Action; alias: Alias | null } | null>(null);
  const query = usePages(["aliases", tenant, adapter], (cursor) =>
    body(
      api.GET("/admin/tenants/{tenant}/adapters/{adapter}/aliases", {
        params: { path: { tenant, adapter }, query: { cursor } },
      }),
    ),
  );

  return (
    <section aria-label="Aliases">
      <div className="page-head">
        <h2>Aliases</h2>
        {can("adapters:write") && versions.length > 0 && (
          <button type="button" onClick={() => setOpen({ action: "promote", alias: null })}>
            New alias…
          </button>
        )}
      </div>
      <Paged query={query}>
        {(aliases) =>
          aliases.length === 0 ? (
            <Empty title="No alias" command={`tenora adapters promote ${adapter}@1 --tenant ${tenant}`}>
              <p>
                Requests that name <code>{adapter}</code> need the alias <code>default</code>. Promote a version to
                create it.
              </p>
            </Empty>
          ) : (
            <AliasTable
              tenant={tenant}
              adapter={adapter}
              aliases={aliases}
              onAction={(action, alias) => setOpen({ action, alias })}
            />
          )
        }
      </Paged>
      {open !== null && (
        <AliasDialog {...open} tenant={tenant} adapter={adapter} versions={versions} onClose={() => setOpen(null)} />
      )}
    </section>
  );
}

interface TableProps {
  tenant: string;
  adapter: string;
  aliases: readonly Alias[];
  onAction: (action: Action, alias: Alias) => void;
}

function AliasTable({ tenant, adapter, aliases, onAction }: TableProps) {
  const { can } = useMe();
  const actions = ACTIONS.filter(([action]) => action === "history" || can("adapters:write"));
  return (
    <Table
      caption="Aliases"
      rows={aliases}
      rowKey={(alias) => alias.name}
      columns={[
        { head: "Alias", cell: (alias) => <code>{alias.name}</code> },
        { head: "Traffic", cell: (alias) => weights(alias.weights) },
        { head: "Canary", cell: (alias) => <AliasCanary tenant={tenant} adapter={adapter} alias={alias.name} /> },
        { head: "Changed", cell: (alias) => time(alias.updated_at) },
        {
          head: "Actions",
          cell: (alias) => (
            <div className="row">
              {actions.map(([action, text]) => (
                <button
                  key={action}
                  type="button"
                  className="small"
                  aria-label={`${text.replace("…", "")} ${alias.name}`}
                  onClick={() => onAction(action, alias)}
                >
                  {text}
                </button>
              ))}
            </div>
          ),
        },
      ]}
    />
  );
}

function AliasDialog({
  action,
  alias,
  ...props
}: Props & { action: Action; alias: Alias | null; onClose: () => void }): ReactNode {
  if (action === "promote" || alias === null) return <PromoteDialog {...props} alias={alias} />;
  if (action === "split") return <SplitDialog {...props} alias={alias} />;
  if (action === "canary") return <CanaryDialog {...props} alias={alias} />;
  if (action === "rollback") return <RollbackDialog {...props} alias={alias} />;
  if (action === "history") return <HistoryDialog {...props} alias={alias.name} />;
  return <DeleteAlias {...props} alias={alias} />;
}

function DeleteAlias({ tenant, adapter, alias, onClose }: Props & { alias: Alias; onClose: () => void }) {
  return (
    <ActionDialog
      title={`Delete the alias ${alias.name}`}
      submit="Delete the alias"
      confirm={alias.name}
      onClose={onClose}
      action={() =>
        api.DELETE("/admin/tenants/{tenant}/adapters/{adapter}/aliases/{alias}", {
          params: { path: { tenant, adapter, alias: alias.name }, header: ifMatch(alias) },
        })
      }
    >
      <p>
        Requests to <code>{alias.model}</code> fail from then on. The versions stay.
      </p>
    </ActionDialog>
  );
}

/** Let a change fail if the alias was changed since this page loaded it. */
export function ifMatch(alias: Alias): { "if-match": string } {
  return { "if-match": `"${alias.revision}"` };
}
