import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useLocation } from "wouter";
import { type Schemas, api, body } from "../../api/client";
import { ActionDialog } from "../../components/action-dialog";
import { Badge } from "../../components/badge";
import { ErrorNotice } from "../../components/error-notice";
import { Facts } from "../../components/facts";
import { Field } from "../../components/field";
import { LimitsForm } from "../../components/limits-form";
import { Loaded } from "../../components/loaded";
import { Page } from "../../components/page";
import { QuotaTable } from "../../components/quota-table";
import { number, time } from "../../lib/format";
import { to } from "../../lib/links";
import { useParam } from "../../lib/params";

type Tenant = Schemas["TenantUsage"];
type Action = "weight" | "quota" | "limits" | "delete";

/** One tenant, as the platform sees it. */
export function TenantPage() {
  const tenant = useParam("tenant");
  const query = useQuery({
    queryKey: ["tenant", tenant],
    queryFn: () => body(api.GET("/admin/tenants/{tenant}", { params: { path: { tenant } } })),
  });
  return (
    <Page
      title={tenant}
      scopes={["admin"]}
      actions={
        <Link href={to.adapters(tenant)} className="button primary">
          Adapters
        </Link>
      }
    >
      <Loaded query={query}>{(data) => <TenantDetails tenant={data} />}</Loaded>
    </Page>
  );
}

function TenantDetails({ tenant }: { tenant: Tenant }) {
  const [open, setOpen] = useState<Action | null>(null);
  const close = () => setOpen(null);
  return (
    <>
      <Facts
        facts={[
          ["Name", tenant.name],
          ["State", <Badge state={tenant.disabled ? "disabled" : "enabled"} />],
          ["Weight", number(tenant.weight)],
          ["Created", time(tenant.created_at)],
        ]}
      />
      <div className="row">
        <Switch tenant={tenant} />
        <button type="button" onClick={() => setOpen("weight")}>
          Weight…
        </button>
        <button type="button" onClick={() => setOpen("quota")}>
          Quota…
        </button>
        <button type="button" onClick={() => setOpen("limits")}>
          Limits…
        </button>
        <button type="button" onClick={() => setOpen("delete")}>
          Delete…
        </button>
      </div>
      <QuotaTable quota={tenant.quota} used={tenant.used} />
      <section aria-label="Limits">
        <h2>Limits</h2>
        <Facts
          facts={Object.entries(tenant.limits).map(
            ([name, value]) => [name.replaceAll("_", " "), String(value ?? "no limit")] as const,
          )}
        />
      </section>
      {open === "weight" && <WeightDialog tenant={tenant} onClose={close} />}
      {open === "quota" && <QuotaDialog tenant={tenant} onClose={close} />}
      {open === "limits" && (
        <LimitsForm
          limits={tenant.limits}
          title={`Limits of ${tenant.slug}`}
          onSave={(limits) => patch(tenant.slug, { limits })}
          onClose={close}
        />
      )}
      {open === "delete" && <DeleteTenant tenant={tenant} onClose={close} />}
    </>
  );
}

function patch(tenant: string, change: Schemas["TenantPatch"]) {
  return api.PATCH("/admin/tenants/{tenant}", { params: { path: { tenant } }, body: change });
}

interface Props {
  tenant: Tenant;
  onClose: () => void;
}

function Switch({ tenant }: { tenant: Tenant }) {
  const change = useMutation({ mutationFn: () => patch(tenant.slug, { disabled: !tenant.disabled }) });
  return (
    <>
      <button type="button" disabled={change.isPending} onClick={() => change.mutate()}>
        {tenant.disabled ? "Enable" : "Disable"}
      </button>
      {change.error !== null && <ErrorNotice error={change.error} />}
    </>
  );
}

function WeightDialog({ tenant, onClose }: Props) {
  const [weight, setWeight] = useState(String(tenant.weight));
  return (
    <ActionDialog
      title={`Weight of ${tenant.slug}`}
      submit="Set the weight"
      onClose={onClose}
      action={() => patch(tenant.slug, { weight: Number(weight) })}
    >
      <Field
        label="Weight"
        type="number"
        min={0.001}
        max={1000}
        step="any"
        value={weight}
        onValue={setWeight}
        hint="The share of the engine while several tenants wait."
      />
    </ActionDialog>
  );
}

const QUOTAS = ["adapters", "versions", "bytes", "rank", "pinned_slots"] as const;

function QuotaDialog({ tenant, onClose }: Props) {
  const [texts, setTexts] = useState(() =>
    Object.fromEntries(QUOTAS.map((name) => [name, String(tenant.quota[name] ?? "")])),
  );
  const quota = Object.fromEntries(
    Object.entries(texts).map(([name, text]) => [name, text.trim() === "" ? null : Number(text)]),
  );
  return (
    <ActionDialog
      title={`Quota of ${tenant.slug}`}
      submit="Set the quota"
      onClose={onClose}
      action={() => patch(tenant.slug, { quota })}
    >
      <p>An empty field means no limit.</p>
      <div className="fields">
        {QUOTAS.map((name) => (
          <Field
            key={name}
            label={name.replaceAll("_", " ")}
            type="number"
            min={0}
            value={texts[name] ?? ""}
            onValue={(text) => setTexts({ ...texts, [name]: text })}
          />
        ))}
      </div>
    </ActionDialog>
  );
}

function DeleteTenant({ tenant, onClose }: Props) {
  const [, navigate] = useLocation();
  async function remove() {
    await api.DELETE("/admin/tenants/{tenant}", { params: { path: { tenant: tenant.slug } } });
    navigate("/tenants");
  }
  return (
    <ActionDialog
      title={`Delete ${tenant.slug}`}
      submit="Delete the tenant"
      confirm={tenant.slug}
      action={remove}
      onClose={onClose}
    >
      <p>The tenant and all its keys go. It must have no adapters: it has {tenant.used.adapters}.</p>
    </ActionDialog>
  );
}
