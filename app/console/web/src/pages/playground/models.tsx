import { useQuery } from "@tanstack/react-query";
import { api, body } from "../../api/client";
import { Field } from "../../components/field";
import { useMe } from "../../session";

const LIST = "model-names";

/**
 * Names of models for the inputs: the base, and the adapters with their aliases and newest versions. Null while they
 * load; a list that cannot be loaded is left out.
 */
export function useModels(tenant: string): string[] | null {
  const { can, server } = useMe();
  const adapters = useQuery({
    queryKey: ["model-names", tenant],
    queryFn: () =>
      body(api.GET("/admin/tenants/{tenant}/adapters", { params: { path: { tenant }, query: { limit: 200 } } })),
    enabled: can("adapters:read"),
  });
  const shared = useQuery({
    queryKey: ["shared-names", tenant],
    queryFn: () =>
      body(api.GET("/admin/tenants/{tenant}/shared", { params: { path: { tenant }, query: { limit: 200 } } })),
    enabled: can("adapters:read"),
  });
  if (adapters.isLoading || shared.isLoading) return null;
  const all = [...(adapters.data?.data ?? []), ...(shared.data?.data ?? [])];
  return [server.base.name, ...all.flatMap((adapter) => namesOf(adapter.name, adapter.aliases, adapter.versions))];
}

function namesOf(name: string, aliases: object, versions: readonly number[]): string[] {
  return [
    ...Object.keys(aliases).map((alias) => (alias === "default" ? name : `${name}:${alias}`)),
    ...[...versions]
      .sort((a, b) => b - a)
      .slice(0, 10)
      .map((version) => `${name}@${version}`),
  ];
}

/** List behind the inputs of ModelField. */
export function ModelNames({ models }: { models: readonly string[] }) {
  return (
    <datalist id={LIST}>
      {models.map((model) => (
        <option key={model} value={model} />
      ))}
    </datalist>
  );
}

interface FieldProps {
  label: string;
  value: string;
  onValue: (value: string) => void;
}

/** Input for a model: base, adapter, adapter:alias or adapter@version. */
export function ModelField(props: FieldProps) {
  return <Field {...props} list={LIST} autoComplete="off" spellCheck={false} required />;
}

/** Return the model that the address names, and another one to compare it with. */
export function initialModels(models: readonly string[]): [string, string] {
  const named = new URLSearchParams(location.search).get("model");
  const base = models[0] ?? "";
  const first = named ?? models[1] ?? base;
  return [first, first === base ? (models[1] ?? base) : base];
}
