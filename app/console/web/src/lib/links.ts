/** Return an address that may be a link: http and https only. A card or a label may hold any other scheme. */
export function safeLink(text: string): string | null {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    return new URL(text).href;
  } catch {
    return null;
  }
}

const segment = encodeURIComponent;

/** Addresses of the console's pages, below /console. */
export const to = {
  adapters: (tenant: string) => `/t/${segment(tenant)}/adapters`,
  adapter: (tenant: string, adapter: string) => `/t/${segment(tenant)}/adapters/${segment(adapter)}`,
  upload: (tenant: string, adapter = "") => `/t/${segment(tenant)}/upload${adapter && `/${segment(adapter)}`}`,
  page: (tenant: string, page: string) => `/t/${segment(tenant)}/${page}`,
  tenant: (tenant: string) => `/tenants/${segment(tenant)}`,
};
