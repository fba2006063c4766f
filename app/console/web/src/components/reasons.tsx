import type { Reason } from "../api/error";
import { Table } from "./table";

/** Every reason of a refusal: where it is, what is there, and what would have been accepted. */
export function Reasons({ reasons, caption = "Reasons" }: { reasons: readonly Reason[]; caption?: string }) {
  return (
    <Table
      caption={caption}
      rows={reasons}
      rowKey={(reason) => `${reason.code} ${reason.field}`}
      columns={[
        { head: "Where", cell: (reason) => <code>{reason.field}</code> },
        { head: "Found", cell: (reason) => <code>{reason.found}</code> },
        { head: "Accepted", cell: (reason) => reason.allowed },
        { head: "How to fix it", cell: (reason) => <ReasonText reason={reason} /> },
      ]}
    />
  );
}

function ReasonText({ reason }: { reason: Reason }) {
  const more = reason.count - reason.examples.length;
  return (
    <>
      {reason.message} <code className="quiet">{reason.code}</code>
      {reason.count > 1 && (
        <p className="quiet">
          At {reason.count} places: {reason.examples.join(", ")}
          {more > 0 && ` and ${more} more`}
        </p>
      )}
    </>
  );
}
