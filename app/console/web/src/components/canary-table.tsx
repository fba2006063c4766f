import { Link } from "wouter";
import type { Schemas } from "../api/client";
import { count, seconds, share, time } from "../lib/format";
import { to } from "../lib/links";
import { Empty } from "./empty";
import { type PageOf, Paged, usePages } from "./paged";
import { Table } from "./table";

type Canary = Schemas["RunningCanary"];

interface Props {
  queryKey: readonly unknown[];
  list: (cursor: string | undefined) => Promise<PageOf<Canary>>;
}

const POLL_MS = 5_000;

/** Running canaries with the figures of both versions in the present step. */
export function CanaryList({ queryKey, list }: Props) {
  const query = usePages(["canaries", ...queryKey], list, POLL_MS);
  return (
    <Paged query={query}>
      {(canaries) =>
        canaries.length === 0 ? (
          <Empty title="No canary runs" command="tenora adapters canary ADAPTER@2 --tenant TENANT">
            <p>A canary starts on the page of its adapter.</p>
          </Empty>
        ) : (
          <CanaryTable canaries={canaries} />
        )
      }
    </Paged>
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

/** Answers, errors and time to first token of one version in a canary. */
export function Figures({ figures }: { figures: Schemas["CanaryFigures"] }) {
  const rate = figures.requests === 0 ? null : figures.errors / figures.requests;
  return (
    <>
      {count(figures.requests)} answers, {share(rate)} errors, TTFT p95 {seconds(figures.ttft_p95_s)}
    </>
  );
}
