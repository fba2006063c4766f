import { api, body } from "../../api/client";
import { DeletionList } from "../../components/deletion-list";
import { Page } from "../../components/page";
import { useParam } from "../../lib/params";

export function Deletions() {
  const tenant = useParam("tenant");
  return (
    <Page title="Deletions" scopes={["adapters:read"]}>
      <DeletionList
        queryKey={[tenant]}
        command={`tenora adapters delete ADAPTER@1 --tenant ${tenant}`}
        list={(cursor) =>
          body(api.GET("/admin/tenants/{tenant}/deletions", { params: { path: { tenant }, query: { cursor } } }))
        }
      />
    </Page>
  );
}
