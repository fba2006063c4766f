import { useState } from "react";
import { Link } from "wouter";
import type { Schemas } from "../api/client";
import { useDebounced } from "../lib/debounced";
import { count, seconds, share, time } from "../lib/format";
import { to } from "../lib/links";
import { Empty } from "./empty";
import { type PageOf, Paged, usePages } from "./paged";
import { SearchFields, type Sort } from "./search-fields";
import { Table } from "./table";

type Canary = Schemas["RunningCanary"];

interface Query {
  q: string | undefined;
  sort: Sort;
  cursor: string | undefined;
}

interface Props {
  queryKey: readonly unknown[];
  list: (query: Query) => Promise<PageOf<Canary>>;
}

const POLL_MS = 5_000;

/** Running canaries with the figures of both versions in the present step. */
export function CanaryList({ queryKey, list }: Props) {
  const [text, setText] = useState("");
  const [sort, setSort] = useState<Sort>("created");
  const search = { q: useDebounced(text.trim()) || undefined, sort };
  const query = usePages(["canaries", ...queryKey, search], (cursor) => list({ ...search, cursor }), POLL_MS);
  return (
    <>
      <search className="fields">
        <SearchFields text={text} onText={setText} sort={sort} onSort={setSort} />
      </search>
      <Paged query={query}>
        {(canaries) =>
          canaries.length > 0 ? (
            <CanaryTable canaries={canaries} />
          ) : search.q !== undefined ? (
            <p className="quiet">No such canary runs.</p>
          ) : (
            <Empty title="No canary runs" command="tenora adapters canary ADAPTER@2 --tenant TENANT">
              <p>A canary starts on the page of its adapter.</p>
            </Empty>
          )
        }
      </Paged>
    </>
  );
}

function CanaryTable({ canaries }: { canaries: readonly Canary[] }) {
  return (
    <Table
      caption="Running canaries"
      rows={canaries}
      rowKey={(canary) => `${canary.tenant}/${canary.adapter}:${canary.alias}`}
      columns={[
        { head: "Alias", cell: (canary) => <AliasLink canary={canary} /> },
        { head: "Versions", cell: ({ candidate, baseline }) => `${candidate.version} against ${baseline.version}` },
        { head: "Step", cell: (canary) => `${canary.step + 1} of ${canary.policy.steps?.length ?? 1}` },
        { head: "Since", cell: (canary) => time(canary.step_started_at) },
        { head: "Verdict", cell: (canary) => canary.verdict ?? "waiting for answers" },
        { head: "New version", cell: (canary) => <Figures figures={canary.candidate} /> },
        { head: "Old version", cell: (canary) => <Figures figures={canary.baseline} /> },
      ]}
    />
  );
}

function AliasLink({ canary }: { canary: Canary }) {
  return (
    <Link href={to.adapter(canary.tenant, canary.adapter)}>
      {canary.tenant}/{canary.adapter}:{canary.alias}
    </Link>
  );
}

/** Answers, errors, empty answers and time to first token of one version in a canary. */
export function Figures({ figures }: { figures: Schemas["CanaryFigures"] }) {
  const rate = (part: number) => share(figures.requests === 0 ? null : part / figures.requests);
  return (
    <>
      {count(figures.requests)} answers, {rate(figures.errors)} errors, {rate(figures.empties)} empty, TTFT p95{" "}
      {seconds(figures.ttft_p95_s)}
    </>
  );
}
