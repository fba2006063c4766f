import { useState } from "react";
import type { Schemas } from "../api/client";
import { NONE, time } from "../lib/format";
import { Badge } from "./badge";
import { Dialog } from "./dialog";
import { Empty } from "./empty";
import { Facts } from "./facts";
import { type PageOf, Paged, usePages } from "./paged";
import { Table } from "./table";

type Deletion = Schemas["Deletion"];

interface Props {
  queryKey: readonly unknown[];
  list: (cursor: string | undefined) => Promise<PageOf<Deletion>>;
  command: string;
}

const POLL_MS = 5_000;

/** Deletions with their proof: when each copy was verified as gone. */
export function DeletionList({ queryKey, list, command }: Props) {
  const [openId, setOpenId] = useState<string | null>(null);
  const query = usePages(["deletions", ...queryKey], list, POLL_MS);
  // The report goes on while it is shown.
  const open = query.data?.pages.flatMap((page) => page.data).find((deletion) => deletion.id === openId);
  return (
    <>
      <Paged query={query}>
        {(deletions) =>
          deletions.length === 0 ? (
            <Empty title="Nothing was deleted" command={command}>
              <p>Each deletion of an adapter, a version or a file leaves its proof here.</p>
            </Empty>
          ) : (
            <Table
              caption="Deletions"
              rows={deletions}
              rowKey={(deletion) => deletion.id}
              columns={[
                { head: "Deleted", cell: (deletion) => deletion.subject },
                { head: "Tenant", cell: (deletion) => deletion.tenant ?? NONE },
                { head: "State", cell: (deletion) => <Badge state={deletion.state} /> },
                { head: "Requested", cell: (deletion) => `${time(deletion.requested_at)} by ${deletion.requested_by}` },
                { head: "Finished", cell: (deletion) => time(deletion.finished_at) },
                {
                  head: "Proof",
                  cell: (deletion) => (
                    <button
                      type="button"
                      className="small"
                      aria-label={`Proof for ${deletion.subject}`}
                      onClick={() => setOpenId(deletion.id)}
                    >
                      Proof
                    </button>
                  ),
                },
              ]}
            />
          )
        }
      </Paged>
      {open !== undefined && <Proof deletion={open} onClose={() => setOpenId(null)} />}
    </>
  );
}

function Proof({ deletion, onClose }: { deletion: Deletion; onClose: () => void }) {
  return (
    <Dialog title={`Proof: ${deletion.subject}`} onClose={onClose}>
      <Facts
        facts={[
          ["Report", <code>{deletion.id}</code>],
          ["Gone from lists", time(deletion.listings_gone_at)],
          ["Held by an alias, canary or pin", deletion.forced ? "yes, taken away" : "no"],
          ["Finished", time(deletion.finished_at)],
        ]}
      />
      <Table
        caption="Versions"
        showCaption
        rows={deletion.versions}
        rowKey={(version) => version.name}
        columns={[
          { head: "Version", cell: (version) => version.name },
          { head: "Digest", cell: (version) => <code>{version.digest}</code> },
          { head: "Kept on disk, because", cell: (version) => version.kept_on_disk ?? NONE },
        ]}
      />
      <Table
        caption="Servers"
        showCaption
        rows={deletion.nodes}
        rowKey={(node) => node.node}
        columns={[
          { head: "Server", cell: (node) => node.name ?? node.node },
          { head: "Answers", cell: (node) => (node.reachable ? "yes" : "no") },
          { head: "Gone from the engine", cell: (node) => time(node.engine_gone_at) },
          { head: "Gone from the disk", cell: (node) => time(node.disk_gone_at) },
        ]}
      />
      {deletion.blobs.length > 0 && <StoredFiles blobs={deletion.blobs} />}
    </Dialog>
  );
}

/** Files in the store. Only the platform sees them. */
function StoredFiles({ blobs }: { blobs: Deletion["blobs"] }) {
  return (
    <Table
      caption="Stored files"
      showCaption
      rows={blobs}
      rowKey={(blob) => blob.digest}
      columns={[
        { head: "Digest", cell: (blob) => <code>{blob.digest}</code> },
        { head: "Gone from the store", cell: (blob) => time(blob.gone_at) },
        { head: "Kept, because", cell: (blob) => blob.kept ?? NONE },
      ]}
    />
  );
}
