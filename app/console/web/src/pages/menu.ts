/** Entries of the platform's menu: text and path. */
export const PLATFORM_MENU = [
  ["Overview", "/"],
  ["Tenants", "/tenants"],
  ["Keys", "/keys"],
  ["Usage and cost", "/usage"],
  ["Prices", "/prices"],
  ["Engine", "/engine"],
  ["Canaries", "/canaries"],
  ["Batches", "/batches"],
  ["Deletions", "/deletions"],
  ["Audit", "/audit"],
  ["Events", "/events"],
] as const;

/** Entries of a tenant's menu: text and page. */
export const TENANT_MENU = [
  ["Adapters", "adapters"],
  ["Upload", "upload"],
  ["Playground", "playground"],
  ["Batches", "batches"],
  ["Usage", "usage"],
  ["Keys", "keys"],
  ["Limits", "limits"],
  ["Shared with me", "shared"],
  ["Deletions", "deletions"],
  ["Events", "events"],
] as const;
