import { useParams } from "wouter";

/** Return a name from the address of the page. */
export function useParam(name: string): string {
  const value = useParams()[name];
  if (value === undefined) throw new Error(`the address has no ${name}`);
  return value;
}
