import { Page } from "../../components/page";
import { PlatformBatches } from "../../components/platform-batches";

export function AllBatches() {
  return (
    <Page title="Batches" scopes={["admin"]}>
      <PlatformBatches />
    </Page>
  );
}
