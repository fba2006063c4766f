import { type Schemas, api } from "../../../api/client";
import { ActionDialog } from "../../../components/action-dialog";
import { Loaded } from "../../../components/loaded";
import { Table } from "../../../components/table";
import { NONE, time, weights } from "../../../lib/format";
import { ifMatch } from "../aliases";
import { useHistory } from "./history";

interface Props {
  tenant: string;
  adapter: string;
  alias: Schemas["Alias"];
  onClose: () => void;
}

/** Return an alias to its previous target. */
export function RollbackDialog({ tenant, adapter, alias, onClose }: Props) {
  const query = useHistory({ tenant, adapter, alias: alias.name });
  return (
    <ActionDialog
      title={`Roll back ${adapter}:${alias.name}`}
      submit="Roll back"
      onClose={onClose}
      action={() =>
        api.POST("/admin/tenants/{tenant}/adapters/{adapter}/aliases/{alias}/rollback", {
          params: { path: { tenant, adapter, alias: alias.name }, header: ifMatch(alias) },
        })
      }
    >
      <p>
        Now: {weights(alias.weights)}. The server returns to the target before; during a canary, to the old version. A
        second rollback undoes the first.
      </p>
      <Loaded query={query}>{(data) => <Targets changes={data.pages[0]?.data ?? []} />}</Loaded>
    </ActionDialog>
  );
}

const SHOWN = 5;

function Targets({ changes }: { changes: readonly Schemas["AliasChange"][] }) {
  return (
    <Table
      caption="Latest targets, newest first"
      showCaption
      rows={changes.slice(0, SHOWN)}
      rowKey={(change) => change.revision}
      columns={[
        { head: "When", cell: (change) => time(change.at) },
        { head: "Change", cell: (change) => change.action },
        { head: "Traffic", cell: (change) => (change.weights === null ? NONE : weights(change.weights)) },
      ]}
    />
  );
}
