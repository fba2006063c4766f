import { useMe } from "../../session";
import { UsageReportView } from "../../components/usage-report";
import { fetchUsage } from "./usage";

/** Usage of one adapter by version. */
export function AdapterUsage({ tenant, adapter }: { tenant: string; adapter: string }) {
  const { can, isPlatform } = useMe();
  return (
    <section aria-label="Usage">
      <h2>Usage</h2>
      {can("usage:read") ? (
        <UsageReportView
          queryKey={[tenant, adapter]}
          fetchReport={fetchUsage(isPlatform, tenant)}
          groupings={["version"]}
          adapter={`${tenant}/${adapter}`}
          command={`tenora generate --model ${adapter} "A question"`}
        />
      ) : (
        <p className="quiet">
          The usage needs a key with the scope <code>usage:read</code>.
        </p>
      )}
    </section>
  );
}
