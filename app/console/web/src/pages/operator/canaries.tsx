import { api, body } from "../../api/client";
import { CanaryList } from "../../components/canary-table";
import { Page } from "../../components/page";

export function AllCanaries() {
  return (
    <Page title="Canaries" scopes={["admin"]}>
      <CanaryList queryKey={["all"]} list={(query) => body(api.GET("/admin/canaries", { params: { query } }))} />
    </Page>
  );
}
