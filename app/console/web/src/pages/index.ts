import type { ComponentType } from "react";
import { Audit } from "./operator/audit";
import { AllBatches } from "./operator/batches";
import { AllCanaries } from "./operator/canaries";
import { AllDeletions } from "./operator/deletions";
import { EnginePage } from "./operator/engine";
import { AllEvents } from "./operator/events";
import { Overview } from "./operator/overview";
import { PlatformKeys } from "./operator/keys";
import { Prices } from "./operator/prices";
import { TenantPage } from "./operator/tenant";
import { Tenants } from "./operator/tenants";
import { AllUsage } from "./operator/usage";
import { Playground } from "./playground/page";
import { AdapterPage } from "./tenant/adapter";
import { Adapters } from "./tenant/adapters";
import { Batches } from "./tenant/batches";
import { Deletions } from "./tenant/deletions";
import { Events } from "./tenant/events";
import { Keys } from "./tenant/keys";
import { Limits } from "./tenant/limits";
import { SharedWithMe } from "./tenant/shared";
import { Upload } from "./tenant/upload/page";
import { Usage } from "./tenant/usage";
import { VersionPage } from "./tenant/version";

export interface PageRoute {
  path: string;
  page: ComponentType;
}

/** Pages of a platform key. */
export const PLATFORM_PAGES: readonly PageRoute[] = [
  { path: "/", page: Overview },
  { path: "/tenants", page: Tenants },
  { path: "/tenants/:tenant", page: TenantPage },
  { path: "/keys", page: PlatformKeys },
  { path: "/usage", page: AllUsage },
  { path: "/prices", page: Prices },
  { path: "/engine", page: EnginePage },
  { path: "/canaries", page: AllCanaries },
  { path: "/batches", page: AllBatches },
  { path: "/deletions", page: AllDeletions },
  { path: "/audit", page: Audit },
  { path: "/events", page: AllEvents },
];

/** Pages of a tenant, for its keys and for platform keys. */
export const TENANT_PAGES: readonly PageRoute[] = [
  { path: "/t/:tenant/adapters", page: Adapters },
  { path: "/t/:tenant/adapters/:adapter", page: AdapterPage },
  { path: "/t/:tenant/adapters/:adapter/versions/:number", page: VersionPage },
  { path: "/t/:tenant/upload/:adapter?", page: Upload },
  { path: "/t/:tenant/playground", page: Playground },
  { path: "/t/:tenant/batches", page: Batches },
  { path: "/t/:tenant/usage", page: Usage },
  { path: "/t/:tenant/keys", page: Keys },
  { path: "/t/:tenant/limits", page: Limits },
  { path: "/t/:tenant/shared", page: SharedWithMe },
  { path: "/t/:tenant/deletions", page: Deletions },
  { path: "/t/:tenant/events", page: Events },
];
