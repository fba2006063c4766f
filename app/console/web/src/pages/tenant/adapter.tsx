import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation } from "wouter";
import { api, body } from "../../api/client";
import { ActionDialog } from "../../components/action-dialog";
import { Facts } from "../../components/facts";
import { Loaded } from "../../components/loaded";
import { Page } from "../../components/page";
import { count, plural, time } from "../../lib/format";
import { to } from "../../lib/links";
import { useParam } from "../../lib/params";
import { useMe } from "../../session";
import { Aliases } from "./aliases";
import { AdapterUsage } from "./adapter-usage";
import { Shares } from "./shares";
import { Versions } from "./versions";

export function AdapterPage() {
  const path = { tenant: useParam("tenant"), adapter: useParam("adapter") };
  const { can } = useMe();
  const [deleting, setDeleting] = useState(false);
  const query = useQuery({
    queryKey: ["adapter", path],
    queryFn: () => body(api.GET("/admin/tenants/{tenant}/adapters/{adapter}", { params: { path } })),
    enabled: can("adapters:read"),
  });
  return (
    <Page
      title={path.adapter}
      scopes={["adapters:read"]}
      actions={<Actions {...path} onDelete={() => setDeleting(true)} />}
    >
      <Loaded query={query}>
        {(adapter) => (
          <>
            <Facts
              facts={[
                ["Tenant", adapter.tenant],
                ["Created", time(adapter.created_at)],
                ["Versions", count(adapter.versions.length)],
              ]}
            />
            <Aliases {...path} versions={adapter.versions} />
            <Versions {...path} />
            <AdapterUsage {...path} />
            <Shares {...path} />
            {deleting && (
              <DeleteAdapter {...path} versions={adapter.versions.length} onClose={() => setDeleting(false)} />
            )}
          </>
        )}
      </Loaded>
    </Page>
  );
}

function Actions({ tenant, adapter, onDelete }: { tenant: string; adapter: string; onDelete: () => void }) {
  const { can } = useMe();
  return (
    <>
      <Link href={`${to.page(tenant, "playground")}?model=${encodeURIComponent(adapter)}`} className="button">
        Try it
      </Link>
      {can("adapters:write") && (
        <>
          <Link href={to.upload(tenant, adapter)} className="button primary">
            Upload a version
          </Link>
          <button type="button" onClick={onDelete}>
            Delete…
          </button>
        </>
      )}
    </>
  );
}

interface DeleteProps {
  tenant: string;
  adapter: string;
  versions: number;
  onClose: () => void;
}

function DeleteAdapter({ tenant, adapter, versions, onClose }: DeleteProps) {
  const [, navigate] = useLocation();

  async function remove() {
    await api.DELETE("/admin/tenants/{tenant}/adapters/{adapter}", {
      params: { path: { tenant, adapter }, query: { force: true } },
    });
    navigate(to.page(tenant, "deletions"));
  }

  return (
    <ActionDialog
      title={`Delete ${adapter}`}
      submit="Delete the adapter"
      confirm={adapter}
      action={remove}
      onClose={onClose}
    >
      <p>These go, and cannot be restored:</p>
      <ul className="list">
        <li>
          {plural(versions, "version")} with their weights, on the store, on every server's disk and in the engine
        </li>
        <li>all aliases, canaries and pins of the adapter</li>
        <li>its shares: other tenants lose it at once</li>
      </ul>
      <p>Requests to it fail from the next second on. The deletion page shows the proof.</p>
    </ActionDialog>
  );
}
