import { EventList } from "../../components/event-list";
import { Page } from "../../components/page";
import { useParam } from "../../lib/params";

export function Events() {
  const tenant = useParam("tenant");
  return (
    <Page title="Events" scopes={["adapters:read"]}>
      <EventList tenant={tenant} />
    </Page>
  );
}
