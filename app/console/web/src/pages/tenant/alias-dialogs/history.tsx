import { api, body } from "../../../api/client";
import { Dialog } from "../../../components/dialog";
import { Paged, usePages } from "../../../components/paged";
import { Table } from "../../../components/table";
import { NONE, time, weights } from "../../../lib/format";

interface Props {
  tenant: string;
  adapter: string;
  alias: string;
  onClose: () => void;
}

export function useHistory({ tenant, adapter, alias }: Omit<Props, "onClose">) {
  return usePages(["history", tenant, adapter, alias], (cursor) =>
    body(
      api.GET("/admin/tenants/{tenant}/adapters/{adapter}/aliases/{alias}/history", {
        params: { path: { tenant, adapter, alias }, query: { cursor, limit: 20 } },
      }),
    ),
  );
}

/** Changes of an alias, newest first. */
export function HistoryDialog({ onClose, ...path }: Props) {
  const query = useHistory(path);
  return (
    <Dialog title={`History of ${path.adapter}:${path.alias}`} onClose={onClose}>
      <Paged query={query}>
        {(changes) => (
          <Table
            caption="Changes of the alias"
            rows={changes}
            rowKey={(change) => change.revision}
            columns={[
              { head: "When", cell: (change) => time(change.at) },
              { head: "Change", cell: (change) => change.action },
              { head: "Traffic", cell: (change) => (change.weights === null ? NONE : weights(change.weights)) },
              { head: "By", cell: (change) => change.actor },
              { head: "Reason", cell: (change) => change.reason ?? NONE },
            ]}
          />
        )}
      </Paged>
    </Dialog>
  );
}
