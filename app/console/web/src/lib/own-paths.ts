let ownTenant: string | null = null;

/** Set the tenant of the session's key; null for a key of the platform. */
export function setOwnTenant(tenant: string | null): void {
  ownTenant = tenant;
}

/**
 * Return the path of a tenant's own key for a path of one tenant: `/v1/adapters` for `/admin/tenants/acme/adapters`.
 *
 * Both are the same route. A proxy for clients outside hides all of `/admin`. See deploy/nginx/tls.conf.
 */
export function ownPath(path: string): string {
  if (ownTenant === null) return path;
  const prefix = `/admin/tenants/${encodeURIComponent(ownTenant)}/`;
  return path.startsWith(prefix) ? `/v1/${path.slice(prefix.length)}` : path;
}
