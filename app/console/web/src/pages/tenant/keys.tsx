import { api, body } from "../../api/client";
import { type KeyCalls, KeyManager } from "../../components/key-manager";
import { Page } from "../../components/page";
import { useParam } from "../../lib/params";
import { useMe } from "../../session";

const SCOPES = ["inference", "batch", "adapters:read", "adapters:write", "usage:read", "keys:write"] as const;

export function Keys() {
  const tenant = useParam("tenant");
  const { isPlatform, key } = useMe();
  const calls = isPlatform ? platformCalls(tenant) : ownCalls(tenant, key.scopes);
  return (
    <Page title="Keys" scopes={["keys:write"]}>
      <KeyManager calls={calls} />
    </Page>
  );
}

function command(tenant: string): string {
  return `tenora keys create NAME --tenant ${tenant} --scope inference`;
}

function platformCalls(tenant: string): KeyCalls {
  return {
    queryKey: [tenant],
    list: (query) => body(api.GET("/admin/tenants/{tenant}/keys", { params: { path: { tenant }, query } })),
    create: (key) => body(api.POST("/admin/tenants/{tenant}/keys", { params: { path: { tenant } }, body: key })),
    revoke: (id) => api.DELETE("/admin/tenants/{tenant}/keys/{key_id}", { params: { path: { tenant, key_id: id } } }),
    rotate: (id) =>
      body(
        api.POST("/admin/tenants/{tenant}/keys/{key_id}/rotate", {
          params: { path: { tenant, key_id: id } },
          body: {},
        }),
      ),
    scopes: SCOPES,
    command: command(tenant),
  };
}

function ownCalls(tenant: string, scopes: readonly string[]): KeyCalls {
  return {
    queryKey: [tenant],
    list: (query) => body(api.GET("/v1/keys", { params: { query } })),
    create: (key) => body(api.POST("/v1/keys", { body: key })),
    revoke: (id) => api.DELETE("/v1/keys/{key_id}", { params: { path: { key_id: id } } }),
    // A key gives away no more than it has.
    scopes: SCOPES.filter((scope) => scopes.includes(scope)),
    command: command(tenant),
  };
}
