import { useState } from "react";
import { api, body } from "../../api/client";
import { type KeyCalls, KeyManager } from "../../components/key-manager";
import { KeyTable } from "../../components/key-table";
import { Checkbox } from "../../components/field";
import { Page } from "../../components/page";
import { Paged, usePages } from "../../components/paged";
import { IN_KEYS, SearchFields, type Sort } from "../../components/search-fields";
import { useDebounced } from "../../lib/debounced";

const PLATFORM: KeyCalls = {
  queryKey: ["platform"],
  list: (query) => body(api.GET("/admin/keys", { params: { query } })),
  create: (key) => body(api.POST("/admin/keys", { body: key })),
  revoke: (id) => api.DELETE("/admin/keys/{key_id}", { params: { path: { key_id: id } } }),
  rotate: (id) => body(api.POST("/admin/keys/{key_id}/rotate", { params: { path: { key_id: id } }, body: {} })),
  scopes: ["admin", "metrics"],
  command: "tenora keys create NAME --platform",
};

/** Keys of the platform team, and a search in those of all tenants. */
export function PlatformKeys() {
  return (
    <Page title="Keys" scopes={["admin"]}>
      <section aria-label="Platform keys">
        <h2>Platform keys</h2>
        <KeyManager calls={PLATFORM} />
      </section>
      <AllKeys />
    </Page>
  );
}

function AllKeys() {
  const [text, setText] = useState("");
  const [onlyWorking, setOnlyWorking] = useState(true);
  const [sort, setSort] = useState<Sort>("-created");
  const filter = { q: useDebounced(text.trim()) || undefined, sort, working: onlyWorking ? true : undefined };
  const query = usePages(["keys", "all", filter], (cursor) =>
    body(api.GET("/admin/keys/all", { params: { query: { ...filter, cursor } } })),
  );
  return (
    <section aria-label="Keys of all tenants">
      <h2>Keys of all tenants</h2>
      <search className="fields" aria-label="Search in keys of all tenants">
        <SearchFields {...IN_KEYS} text={text} onText={setText} sort={sort} onSort={setSort} />
        <Checkbox label="Only keys that work" checked={onlyWorking} onValue={setOnlyWorking} />
      </search>
      <Paged query={query}>
        {(keys) => (keys.length === 0 ? <p className="quiet">No such key.</p> : <KeyTable keys={keys} withTenant />)}
      </Paged>
    </section>
  );
}
