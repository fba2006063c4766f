import { UsageReportView } from "../../components/usage-report";
import { useMe } from "../../session";
import { usageCalls } from "./usage";

/** Usage of one adapter by version. */
export function AdapterUsage({ tenant, adapter }: { tenant: string; adapter: string }) {
  const { can, isPlatform } = useMe();
  return (
    <section aria-label="Usage">
      <h2>Usage</h2>
      {can("usage:read") ? (
        <UsageReportView
          calls={usageCalls(isPlatform, tenant, adapter)}
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
