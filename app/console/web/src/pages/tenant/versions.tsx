import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { type Schemas, api, body } from "../../api/client";
import { ActionDialog } from "../../components/action-dialog";
import { Badge } from "../../components/badge";
import { Empty } from "../../components/empty";
import { ErrorNotice } from "../../components/error-notice";
import { Field } from "../../components/field";
import { Paged, usePages } from "../../components/paged";
import { Table } from "../../components/table";
import { NONE, bytes, count, time } from "../../lib/format";
import { to } from "../../lib/links";
import { useMe } from "../../session";

type Version = Schemas["Version"];

interface Props {
  tenant: string;
  adapter: string;
}

const POLL_MS = 2_000;

/** Versions of an adapter, newest first, with what can be done with each. */
export function Versions({ tenant, adapter }: Props) {
  const query = usePages(["versions", tenant, adapter], (cursor) =>
    body(
      api.GET("/admin/tenants/{tenant}/adapters/{adapter}/versions", {
        params: { path: { tenant, adapter }, query: { cursor, limit: 20 } },
      }),
    ),
  );
  return (
    <section aria-label="Versions">
      <h2>Versions</h2>
      <Paged query={query}>
        {(versions) =>
          versions.length === 0 ? (
            <Empty title="No version" command={`tenora adapters push FOLDER --tenant ${tenant} --adapter ${adapter}`}>
              <p>Upload a version to serve the adapter again.</p>
            </Empty>
          ) : (
            <VersionTable tenant={tenant} adapter={adapter} versions={versions} />
          )
        }
      </Paged>
    </section>
  );
}

function VersionTable({ tenant, adapter, versions }: Props & { versions: readonly Version[] }) {
  const { can } = useMe();
  return (
    <Table
      caption="Versions"
      rows={versions}
      rowKey={(version) => version.version}
      columns={[
        {
          head: "Version",
          cell: (version) => (
            <Link href={`${to.adapter(tenant, adapter)}/versions/${version.version}`}>{version.name}</Link>
          ),
        },
        { head: "State", cell: (version) => <VersionState version={version} /> },
        { head: "Aliases", cell: (version) => version.aliases.join(", ") || NONE },
        { head: "Rank", numeric: true, cell: (version) => count(version.rank) },
        { head: "Size", numeric: true, cell: (version) => bytes(version.size_bytes) },
        { head: "Uploaded", cell: (version) => uploaded(version) },
        ...(can("adapters:write")
          ? [
              {
                head: "Actions",
                cell: (version: Version) => <VersionActions tenant={tenant} version={version} />,
              },
            ]
          : []),
      ]}
    />
  );
}

/** Time of the upload, and the owner or name of its key, or the key's id. */
export function uploaded({ provenance }: Version): string {
  return `${time(provenance.uploaded_at)} by ${provenance.uploaded_by_name ?? provenance.uploaded_by}`;
}

export function VersionState({ version }: { version: Version }) {
  return (
    <>
      <Badge state={version.state} /> {version.pinned && <Badge state="pinned" />}
      {version.state_reason !== null && <div className="quiet text">{version.state_reason}</div>}
    </>
  );
}

type Action = "retire" | "delete";

/** Buttons that act on one version: pin, retire, restore and delete. */
export function VersionActions({ tenant, version }: { tenant: string; version: Version }) {
  const [open, setOpen] = useState<Action | null>(null);
  const path = { tenant, adapter: version.adapter, number: version.version };
  const restore = useMutation({
    mutationFn: () =>
      api.POST("/admin/tenants/{tenant}/adapters/{adapter}/versions/{number}/restore", { params: { path } }),
  });
  const pin = useMutation({
    mutationFn: (on: boolean): Promise<unknown> =>
      on
        ? api.PUT("/admin/tenants/{tenant}/adapters/{adapter}/versions/{number}/pin", { params: { path } })
        : api.DELETE("/admin/tenants/{tenant}/adapters/{adapter}/versions/{number}/pin", { params: { path } }),
  });
  const isRestorable = version.state === "retired" || version.state === "quarantined";

  return (
    <div className="row">
      {version.state === "ready" && (
        <>
          <ActionButton
            name={version.pinned ? "Unpin" : "Pin"}
            version={version}
            onClick={() => pin.mutate(!version.pinned)}
          />
          <ActionButton name="Retire" more version={version} onClick={() => setOpen("retire")} />
        </>
      )}
      {isRestorable && <ActionButton name="Restore" version={version} onClick={() => restore.mutate()} />}
      <ActionButton name="Delete" more version={version} onClick={() => setOpen("delete")} />
      {pin.error !== null && <ErrorNotice error={pin.error} />}
      {restore.error !== null && <ErrorNotice error={restore.error} />}
      {open === "retire" && <RetireDialog path={path} name={version.name} onClose={() => setOpen(null)} />}
      {open === "delete" && <DeleteDialog path={path} version={version} onClose={() => setOpen(null)} />}
    </div>
  );
}

function ActionButton({
  name,
  version,
  more = false,
  onClick,
}: {
  name: string;
  version: Version;
  more?: boolean;
  onClick: () => void;
}) {
  return (
    <button type="button" className="small" aria-label={`${name} ${version.name}`} onClick={onClick}>
      {name}
      {more && "…"}
    </button>
  );
}

interface DialogProps {
  path: { tenant: string; adapter: string; number: number };
  onClose: () => void;
}

function RetireDialog({ path, name, onClose }: DialogProps & { name: string }) {
  const [reason, setReason] = useState("");
  return (
    <ActionDialog
      title={`Retire ${name}`}
      submit="Retire the version"
      disabled={reason.trim() === ""}
      onClose={onClose}
      action={() =>
        api.POST("/admin/tenants/{tenant}/adapters/{adapter}/versions/{number}/retire", {
          params: { path },
          body: { reason: reason.trim() },
        })
      }
    >
      <p>New requests for the version get the status 410 with this reason. Its bytes stay, and it can be restored.</p>
      <Field label="Reason" value={reason} onValue={setReason} maxLength={200} required />
    </ActionDialog>
  );
}

function DeleteDialog({ path, version, onClose }: DialogProps & { version: Version }) {
  const isHeld = version.aliases.length > 0;
  return (
    <ActionDialog
      title={`Delete ${version.name}`}
      submit="Delete the version"
      confirm={version.name}
      onClose={onClose}
      action={() =>
        api.DELETE("/admin/tenants/{tenant}/adapters/{adapter}/versions/{number}", {
          params: { path, query: { force: isHeld } },
        })
      }
    >
      <p>Its weights go from the store, every server&apos;s disk and the engine, and cannot be restored.</p>
      {isHeld && (
        <p>
          These aliases lose it: <strong>{version.aliases.join(", ")}</strong>. Requests to an alias without another
          version fail.
        </p>
      )}
    </ActionDialog>
  );
}

/** How often to ask for a version again: often while its smoke check runs. */
export function pollWhileValidating(version: Version | undefined): number | false {
  return version?.state === "validating" ? POLL_MS : false;
}
