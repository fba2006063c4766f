import { useParam } from "../../lib/params";
import { useMe } from "../../session";

/** Headers by which an operator acts as a tenant; none for a tenant's key. */
export type Actor = Readonly<Record<string, string>>;

export function useActor(): Actor {
  const { isPlatform } = useMe();
  const tenant = useParam("tenant");
  return isPlatform ? { "x-tenora-tenant": tenant } : {};
}
