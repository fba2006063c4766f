import { EventList } from "../../components/event-list";
import { Page } from "../../components/page";

export function AllEvents() {
  return (
    <Page title="Events" scopes={["admin"]}>
      <EventList />
    </Page>
  );
}
