import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { type Schemas, api, body } from "../../api/client";
import { ErrorNotice } from "../../components/error-notice";
import { Field } from "../../components/field";
import { Paged, usePages } from "../../components/paged";
import { Table } from "../../components/table";
import { useDebounced } from "../../lib/debounced";
import { time } from "../../lib/format";
import { useMe } from "../../session";

interface Props {
  tenant: string;
  adapter: string;
}

/** Tenants that may read the adapter and infer with it. */
export function Shares({ tenant, adapter }: Props) {
  const { can } = useMe();
  const [text, setText] = useState("");
  const q = useDebounced(text.trim()) || undefined;
  const query = usePages(["shares", tenant, adapter, q], (cursor) =>
    body(
      api.GET("/admin/tenants/{tenant}/adapters/{adapter}/shares", {
        params: { path: { tenant, adapter }, query: { q, cursor } },
      }),
    ),
  );
  const end = useMutation({
    mutationFn: (recipient: string) =>
      api.DELETE("/admin/tenants/{tenant}/adapters/{adapter}/shares/{recipient}", {
        params: { path: { tenant, adapter, recipient } },
      }),
  });

  return (
    <section aria-label="Shares">
      <h2>Shared with</h2>
      {can("adapters:write") && <NewShare tenant={tenant} adapter={adapter} />}
      {end.error !== null && <ErrorNotice error={end.error} />}
      {(query.hasNextPage || text !== "") && (
        <search className="fields">
          <Field label="Find a tenant" type="search" placeholder="part of a name" value={text} onValue={setText} />
        </search>
      )}
      <Paged query={query}>
        {(shares) =>
          shares.length === 0 ? (
            <p className="quiet">{q === undefined ? "No other tenant." : "Not shared with such a tenant."}</p>
          ) : (
            <ShareTable
              shares={shares}
              onEnd={can("adapters:write") ? (recipient) => end.mutate(recipient) : undefined}
            />
          )
        }
      </Paged>
    </section>
  );
}

interface TableProps {
  shares: readonly Schemas["Share"][];
  onEnd: ((recipient: string) => void) | undefined;
}

function ShareTable({ shares, onEnd }: TableProps) {
  return (
    <Table
      caption="Tenants that may use the adapter"
      rows={shares}
      rowKey={(share) => share.recipient}
      columns={[
        { head: "Tenant", cell: (share) => share.recipient },
        { head: "Since", cell: (share) => time(share.created_at) },
        { head: "By", cell: (share) => share.created_by },
        {
          head: "Actions",
          cell: (share) =>
            onEnd !== undefined && (
              <button
                type="button"
                className="small"
                aria-label={`End the share with ${share.recipient}`}
                onClick={() => onEnd(share.recipient)}
              >
                End
              </button>
            ),
        },
      ]}
    />
  );
}

function NewShare({ tenant, adapter }: Props) {
  const [recipient, setRecipient] = useState("");
  const share = useMutation({
    mutationFn: () =>
      api.PUT("/admin/tenants/{tenant}/adapters/{adapter}/shares/{recipient}", {
        params: { path: { tenant, adapter, recipient: recipient.trim() } },
      }),
    onSuccess: () => setRecipient(""),
  });

  function onSubmit(event: FormEvent) {
    event.preventDefault();
    share.mutate();
  }

  return (
    <form onSubmit={onSubmit} className="fields">
      <Field label="Share with the tenant" value={recipient} onValue={setRecipient} autoComplete="off" />
      <div>
        <button type="submit" disabled={recipient.trim() === "" || share.isPending}>
          Share
        </button>
      </div>
      {share.error !== null && <ErrorNotice error={share.error} />}
    </form>
  );
}
