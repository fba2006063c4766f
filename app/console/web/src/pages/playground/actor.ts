import { useMe } from "../../session";

/** Headers by which an operator acts as a tenant; empty for a tenant's key. */
export type Actor = Readonly<Record<string, string>>;

const OWN: Actor = {};

export function useActor(tenant: string): Actor {
  const { isPlatform } = useMe();
  return isPlatform ? { "x-tenora-tenant": tenant } : OWN;
}
