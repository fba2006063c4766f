import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { type Schemas, api, body } from "../../api/client";
import { Badge } from "../../components/badge";
import { Changes } from "../../components/changes";
import { ErrorNotice } from "../../components/error-notice";
import { Field } from "../../components/field";
import { Notice } from "../../components/notice";
import { Page } from "../../components/page";
import { Paged, usePages } from "../../components/paged";
import { Table } from "../../components/table";
import { useDebounced } from "../../lib/debounced";
import { NONE, count, plural, time } from "../../lib/format";

/** Audit trail with filters, and the verification of its seals. */
export function Audit() {
  const verify = useMutation({ mutationFn: () => body(api.GET("/admin/audit/verification")) });
  return (
    <Page
      title="Audit"
      scopes={["admin"]}
      actions={
        <button type="button" disabled={verify.isPending} onClick={() => verify.mutate()}>
          {verify.isPending ? "Verifying…" : "Verify the whole trail"}
        </button>
      }
    >
      {verify.error !== null && <ErrorNotice error={verify.error} />}
      {verify.data !== undefined && <Verdict verdict={verify.data} />}
      <Trail />
    </Page>
  );
}

function Verdict({ verdict }: { verdict: Schemas["AuditVerification"] }) {
  const facts = `${count(verdict.sealed)} sealed rows, ${count(verdict.fresh)} without a seal yet`;
  if (verdict.intact) {
    return (
      <Notice tone="success" title="The trail is intact">
        <p>{facts}. No row was changed, removed or inserted.</p>
      </Notice>
    );
  }
  return (
    <Notice tone="error" title={`The trail has ${plural(verdict.problem_count, "problem")}`}>
      <p>{facts}.</p>
      <ul className="list">
        {verdict.problems.map((problem) => (
          <li key={problem}>{problem}</li>
        ))}
      </ul>
    </Notice>
  );
}

const FILTERS = [
  ["tenant", "Tenant", "pricing"],
  ["actor", "By the key", "its id, or cli, engine, canary"],
  ["action", "Action", "alias. for all that begin so"],
  ["subject", "Subject", "pricing@3"],
] as const;

function Trail() {
  const [texts, setTexts] = useState<Readonly<Record<string, string>>>({});
  const given = useDebounced(texts);
  const filter = Object.fromEntries(Object.entries(given).filter(([, text]) => text.trim() !== ""));
  const query = usePages(["audit", filter], (cursor) =>
    body(api.GET("/admin/audit", { params: { query: { ...filter, cursor } } })),
  );
  return (
    <>
      <search className="fields">
        {FILTERS.map(([name, label, placeholder]) => (
          <Field
            key={name}
            label={label}
            placeholder={placeholder}
            value={texts[name] ?? ""}
            onValue={(text) => setTexts({ ...texts, [name]: text })}
          />
        ))}
      </search>
      <Paged query={query}>
        {(rows) => (rows.length === 0 ? <p className="quiet">No such row.</p> : <Rows rows={rows} />)}
      </Paged>
    </>
  );
}

function Rows({ rows }: { rows: readonly Schemas["AuditRow"][] }) {
  return (
    <Table
      caption="Audit trail"
      rows={rows}
      rowKey={(row) => row.id}
      columns={[
        { head: "When", cell: (row) => time(row.at) },
        { head: "By", cell: (row) => row.actor_name ?? row.actor },
        { head: "Action", cell: (row) => <code className="whole">{row.action}</code> },
        { head: "Tenant", cell: (row) => row.tenant ?? NONE },
        { head: "Subject", cell: (row) => row.subject },
        { head: "Change", cell: (row) => <Changes before={row.before} after={row.after} /> },
        { head: "Seal", cell: (row) => <Badge state={row.sealed ? "sealed" : "soon"} /> },
      ]}
    />
  );
}
