import { useState } from "react";
import { type Schemas, api, body } from "../../../api/client";
import { Dialog } from "../../../components/dialog";
import { Paged, usePages } from "../../../components/paged";
import { Reasons } from "../../../components/reasons";
import { Table } from "../../../components/table";
import { count, time } from "../../../lib/format";

type Refusal = Schemas["UploadRefusal"];

/** Refused uploads of the last 30 days. Their reasons can be read again, also by colleagues. */
export function Refusals({ tenant }: { tenant: string }) {
  const [open, setOpen] = useState<Refusal | null>(null);
  const query = usePages(["refusals", tenant], (cursor) =>
    body(api.GET("/admin/tenants/{tenant}/refusals", { params: { path: { tenant }, query: { cursor, limit: 10 } } })),
  );
  return (
    <section aria-label="Refused uploads">
      <h2>Refused uploads</h2>
      <Paged query={query}>
        {(refusals) =>
          refusals.length === 0 ? (
            <p className="quiet">None in the last 30 days.</p>
          ) : (
            <RefusalTable refusals={refusals} onOpen={setOpen} />
          )
        }
      </Paged>
      {open !== null && (
        <Dialog title={`Refused upload of ${open.adapter}`} onClose={() => setOpen(null)}>
          <Reasons reasons={open.reasons} />
        </Dialog>
      )}
    </section>
  );
}

function RefusalTable({ refusals, onOpen }: { refusals: readonly Refusal[]; onOpen: (refusal: Refusal) => void }) {
  return (
    <Table
      caption="Refused uploads"
      rows={refusals}
      rowKey={(refusal) => `${refusal.at} ${refusal.adapter}`}
      columns={[
        { head: "When", cell: (refusal) => time(refusal.at) },
        { head: "Adapter", cell: (refusal) => refusal.adapter },
        { head: "By", cell: (refusal) => refusal.key_name ?? refusal.key },
        { head: "Reasons", numeric: true, cell: (refusal) => count(refusal.reason_count) },
        {
          head: "Actions",
          cell: (refusal) => (
            <button
              type="button"
              className="small"
              aria-label={`Show the reasons for ${refusal.adapter}`}
              onClick={() => onOpen(refusal)}
            >
              Show
            </button>
          ),
        },
      ]}
    />
  );
}
