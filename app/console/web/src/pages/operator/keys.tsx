import { api, body } from "../../api/client";
import { KeyManager } from "../../components/key-manager";
import { Page } from "../../components/page";

const SCOPES = ["admin", "metrics"] as const;

/** Keys of the platform team. */
export function PlatformKeys() {
  return (
    <Page title="Platform keys" scopes={["admin"]}>
      <KeyManager
        calls={{
          queryKey: ["platform"],
          list: (cursor) => body(api.GET("/admin/keys", { params: { query: { cursor } } })),
          create: (key) => body(api.POST("/admin/keys", { body: key })),
          revoke: (id) => api.DELETE("/admin/keys/{key_id}", { params: { path: { key_id: id } } }),
          rotate: (id) => body(api.POST("/admin/keys/{key_id}/rotate", { params: { path: { key_id: id } }, body: {} })),
          scopes: SCOPES,
          command: "tenora keys create NAME --platform",
        }}
      />
    </Page>
  );
}
