import { Link } from "wouter";
import type { Schemas } from "../../../api/client";
import { ErrorNotice } from "../../../components/error-notice";
import { Notice } from "../../../components/notice";
import { Reasons } from "../../../components/reasons";
import { plural } from "../../../lib/format";
import { to } from "../../../lib/links";
import { Refused } from "./run";

interface Props {
  tenant: string;
  version: Schemas["Version"] | undefined;
  error: Error | null;
}

/** End of an upload: the new version with the next steps, or every reason against it. */
export function Outcome({ tenant, version, error }: Props) {
  if (error instanceof Refused) return <RefusedNotice error={error} />;
  if (error !== null) return <ErrorNotice error={error} />;
  if (version === undefined) return null;
  const page = to.adapter(tenant, version.adapter);
  return (
    <Notice tone="success" title={`${version.name} is ${version.state}`}>
      {version.warnings.map((warning) => (
        <p key={warning}>{warning}</p>
      ))}
      <p className="row">
        <Link href={`${to.page(tenant, "playground")}?model=${encodeURIComponent(version.name)}`}>Try it</Link>
        <Link href={page}>Promote it, or start a canary</Link>
        <Link href={`${page}/versions/${version.version}`}>Show the version</Link>
      </p>
    </Notice>
  );
}

function RefusedNotice({ error }: { error: Refused }) {
  const title = error.reasons.length === 0 ? "Rejected" : `Rejected for ${plural(error.reasons.length, "reason")}`;
  return (
    <Notice tone="error" title={title}>
      <p>{error.message}</p>
      {error.reasons.length > 0 && <Reasons reasons={error.reasons} />}
      {error.requestId !== null && (
        <p className="quiet">
          Request <code>{error.requestId}</code>
        </p>
      )}
    </Notice>
  );
}
