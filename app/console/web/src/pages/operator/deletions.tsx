import { api, body } from "../../api/client";
import { DeletionList } from "../../components/deletion-list";
import { Page } from "../../components/page";

export function AllDeletions() {
  return (
    <Page title="Deletions" scopes={["admin"]}>
      <DeletionList
        queryKey={["all"]}
        command="tenora adapters delete ADAPTER@1 --tenant TENANT"
        list={(cursor) => body(api.GET("/admin/deletions", { params: { query: { cursor } } }))}
      />
    </Page>
  );
}
