import { useQuery } from "@tanstack/react-query";
import { type Schemas, api, body } from "../../api/client";
import { Command } from "../../components/command";
import { Facts } from "../../components/facts";
import { Labels } from "../../components/labels";
import { Loaded } from "../../components/loaded";
import { Notice } from "../../components/notice";
import { Page } from "../../components/page";
import { SafeLink } from "../../components/safe-link";
import { NONE, bytes, count, number } from "../../lib/format";
import { useParam } from "../../lib/params";
import { useMe } from "../../session";
import { VersionActions, VersionState, pollWhileValidating, uploaded } from "./versions";

export function VersionPage() {
  const path = { tenant: useParam("tenant"), adapter: useParam("adapter"), number: Number(useParam("number")) };
  const { can } = useMe();
  const query = useQuery({
    queryKey: ["version", path],
    queryFn: () => body(api.GET("/admin/tenants/{tenant}/adapters/{adapter}/versions/{number}", { params: { path } })),
    enabled: can("adapters:read"),
    refetchInterval: ({ state }) => pollWhileValidating(state.data),
  });
  return (
    <Page
      title={`${path.adapter}@${path.number}`}
      scopes={["adapters:read"]}
      actions={query.data && can("adapters:write") && <VersionActions tenant={path.tenant} version={query.data} />}
    >
      <Loaded query={query}>{(version) => <VersionDetails tenant={path.tenant} version={version} />}</Loaded>
    </Page>
  );
}

function VersionDetails({ tenant, version }: { tenant: string; version: Schemas["Version"] }) {
  const origin = version.provenance;
  return (
    <>
      {version.warnings.map((warning) => (
        <Notice key={warning} tone="warning" title={warning} />
      ))}
      <Facts
        facts={[
          ["State", <VersionState version={version} />],
          ["Aliases", version.aliases.join(", ") || NONE],
          ["Rank", count(version.rank)],
          ["Alpha", number(origin.alpha)],
          ["Modules", origin.target_modules?.join(", ") ?? NONE],
          ["Parameters", count(origin.parameters)],
          ["Type of numbers", origin.dtype ?? NONE],
          ["Size", bytes(version.size_bytes)],
          ["Digest", <code>{version.digest}</code>],
          ["Uploaded", uploaded(version)],
          ["From", origin.uploaded_from ?? NONE],
          ["PEFT", origin.peft_version ?? NONE],
          ["Checked against", origin.base?.name ?? NONE],
          ["Training run", origin.training_run === null ? NONE : <SafeLink text={origin.training_run} />],
        ]}
      />
      <section aria-label="Description">
        <h2>Labels and card</h2>
        <Labels labels={version.labels} />
        {version.card === "" ? <p className="quiet">No card.</p> : <div className="card text">{version.card}</div>}
      </section>
      <section aria-label="Defaults">
        <h2>Defaults of requests</h2>
        <pre className="block" tabIndex={0} aria-label="Defaults">
          {JSON.stringify(version.defaults, null, 2)}
        </pre>
      </section>
      <section aria-label="Files">
        <h2>Files</h2>
        <p>Download the two files as they were uploaded:</p>
        <Command line={`tenora adapters export ${version.name} FOLDER --tenant ${tenant}`} />
      </section>
    </>
  );
}
