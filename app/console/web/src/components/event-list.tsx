import { useState } from "react";
import { useEvents } from "../events";
import { NONE, time } from "../lib/format";
import type { FeedEvent } from "../lib/feed";
import { Changes } from "./changes";
import { Empty } from "./empty";
import { Field } from "./field";
import { Table } from "./table";

const SHOWN = 100;

/** Events since the page was opened. */
export function EventList({ tenant }: { tenant?: string }) {
  const [filter, setFilter] = useState("");
  const ofTenant = useEvents().filter((event) => tenant === undefined || event.tenant === tenant);
  const events = ofTenant.filter((event) => `${event.type} ${event.subject}`.includes(filter.trim()));
  return (
    <>
      <Field label="Type or subject" value={filter} onValue={setFilter} placeholder="canary" />
      {events.length === 0 ? (
        <Empty
          title={ofTenant.length === 0 ? "No event since you opened the console" : "No such event"}
          command={`tenora adapters watch${tenant === undefined ? "" : ` --tenant ${tenant}`}`}
        >
          <p>Events appear here as they happen: versions, aliases, canaries, deletions, and loads of the engine.</p>
        </Empty>
      ) : (
        <Table
          caption="Events"
          rows={events.slice(0, SHOWN)}
          rowKey={(event) => `${event.id} ${event.at} ${event.type} ${event.subject}`}
          columns={[
            { head: "When", cell: (event) => time(event.at) },
            { head: "Event", cell: (event) => <code>{event.type}</code> },
            { head: "Subject", cell: (event) => event.subject },
            ...(tenant === undefined ? [{ head: "Tenant", cell: (event: FeedEvent) => event.tenant ?? NONE }] : []),
            { head: "By", cell: (event) => event.actor ?? event.node ?? NONE },
            { head: "Change", cell: (event) => <Changes before={event.before} after={event.after} /> },
          ]}
        />
      )}
    </>
  );
}
