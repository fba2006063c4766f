import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { type Schemas, api, body } from "../../api/client";
import { ApiError } from "../../api/error";
import { Badge } from "../../components/badge";
import { Facts } from "../../components/facts";
import { Loaded } from "../../components/loaded";
import { Page } from "../../components/page";
import { Table } from "../../components/table";
import { Tiles } from "../../components/tiles";
import { UsageReportView } from "../../components/usage-report";
import { NONE, bytes, count, share } from "../../lib/format";
import { useMe } from "../../session";
import { ALL_USAGE } from "./usage";

const REFRESH_MS = 5_000;

/** State of the server at a glance. */
export function Overview() {
  const { server } = useMe();
  return (
    <Page title="Overview" scopes={["admin"]}>
      <Facts
        facts={[
          ["Release", server.version],
          ["Base model", server.base.name],
          ["Device", server.device || NONE],
          ["Context", `${count(server.context)} tokens`],
          ["Largest rank", count(server.uploads.max_lora_rank)],
          ["Largest weights", bytes(server.uploads.weights_bytes)],
          ["Features", server.features.join(", ") || "none"],
        ]}
      />
      <Readiness />
      <EngineSummary />
      <section aria-label="Usage">
        <h2>Usage</h2>
        <UsageReportView
          calls={ALL_USAGE}
          groupings={["tenant"]}
          command='tenora generate --model ADAPTER "A question"'
        />
      </section>
    </Page>
  );
}

function Readiness() {
  const query = useQuery({ queryKey: ["readiness"], queryFn: fetchReadiness, refetchInterval: REFRESH_MS });
  return (
    <section aria-label="Checks">
      <h2>Checks</h2>
      <Loaded query={query}>
        {({ status, checks }) => (
          <>
            <p>
              The server is <Badge state={status} />.
            </p>
            <Table
              caption="Checks"
              rows={Object.entries(checks)}
              rowKey={([name]) => name}
              columns={[
                { head: "Check", cell: ([name]) => name.replaceAll("_", " ") },
                { head: "State", cell: ([, state]) => state },
              ]}
            />
          </>
        )}
      </Loaded>
    </section>
  );
}

/** The route answers 503 with the same body if the server is not ready. */
async function fetchReadiness(): Promise<Schemas["Readiness"]> {
  const response = await fetch("/health/ready");
  const answer: unknown = await response.json().catch(() => null);
  if (isReadiness(answer)) return answer;
  throw new ApiError(
    response.status,
    "The server gave no state.",
    "no_state",
    null,
    [],
    response.headers.get("x-request-id"),
    null,
  );
}

function isReadiness(answer: unknown): answer is Schemas["Readiness"] {
  return typeof answer === "object" && answer !== null && "status" in answer && "checks" in answer;
}

function EngineSummary() {
  const query = useQuery({
    queryKey: ["engine", "summary"],
    queryFn: () => body(api.GET("/admin/engine", { params: { query: { limit: 1 } } })),
    refetchInterval: REFRESH_MS,
  });
  return (
    <section aria-label="Engine">
      <div className="page-head">
        <h2>Engine</h2>
        <Link href="/engine">Live view</Link>
      </div>
      <Loaded query={query}>
        {({ state, slots, queue, versions, tiers }) => (
          <Tiles
            tiles={[
              ["State", <Badge state={state} />],
              ["Slots used", `${slots.used} of ${slots.total}`],
              ["Running", count(queue.running)],
              ["Waiting", count(queue.waiting)],
              ["Versions loaded", count(versions.total)],
              ["Slot hit rate", share(tiers.find(({ tier }) => tier === "slot")?.hit_rate)],
            ]}
          />
        )}
      </Loaded>
    </section>
  );
}
