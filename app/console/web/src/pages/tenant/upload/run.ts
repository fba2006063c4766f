import { CONSOLE_HEADERS, type Schemas, api, body } from "../../../api/client";
import { ApiError, type Reason, errorOf } from "../../../api/error";
import { ownPath } from "../../../lib/own-paths";
import { CONFIG, type Selection, WEIGHTS, firstCheck, headerEnd } from "./selection";
import { sendInParts } from "./parts";
import { type OnProgress, postForm, versionsUrl } from "./send";

/** Stages of an upload, in their order. */
export const STAGES = ["checking", "sending", "validating", "smoke check"] as const;
export type Stage = (typeof STAGES)[number];

/** The adapter was refused: in the browser, before or after the weights were sent, or by the smoke check. */
export class Refused extends Error {
  override readonly name = "Refused";

  constructor(
    readonly reasons: readonly Reason[],
    message: string,
    readonly requestId: string | null,
  ) {
    super(message);
  }
}

export interface UploadRequest {
  tenant: string;
  adapter: string;
  selection: Selection;
  options: Schemas["PublishOptions"];
  caps: Schemas["UploadCaps"];
  /** Send parts that survive an interruption, instead of one request. */
  inParts: boolean;
}

interface Watcher {
  onStage: (stage: Stage) => void;
  onProgress: OnProgress;
  signal: AbortSignal;
}

const POLL_MS = 500;

/**
 * Publish a version: check it, send it, and wait for its smoke check.
 *
 * Throws Refused with every reason, or the error of a call.
 */
export async function publish(request: UploadRequest, watcher: Watcher): Promise<Schemas["Version"]> {
  watcher.onStage("checking");
  if (request.selection.kind === "folder") await precheck(request, request.selection, watcher.signal);
  watcher.onStage("sending");
  const version = await refusing(() => (request.inParts ? sendParts(request, watcher) : send(request, watcher)));
  watcher.onStage("smoke check");
  return settled(request.tenant, version, watcher.signal);
}

async function precheck(
  request: UploadRequest,
  files: Selection & { kind: "folder" },
  signal: AbortSignal,
): Promise<void> {
  const found = await firstCheck(files.config, files.weights, request.caps);
  if (found.length > 0) throw new Refused(found, "The browser found this before anything was sent.", null);
  const form = new FormData();
  form.append(CONFIG, files.config);
  form.append(WEIGHTS, files.weights.slice(0, await headerEnd(files.weights)), WEIGHTS);
  form.append(
    "options",
    JSON.stringify({ weights_bytes: files.weights.size, adapter: request.adapter, files: files.others.slice(0, 1000) }),
  );
  const url = ownPath(`/admin/tenants/${encodeURIComponent(request.tenant)}/adapters/validate`);
  const response = await fetch(url, { method: "POST", body: form, headers: CONSOLE_HEADERS, signal });
  if (!response.ok) throw await errorOf(response);
  const { reasons } = (await response.json()) as Schemas["Validation"];
  if (reasons.length > 0)
    throw new Refused(
      reasons,
      "The server found this in the config and the header, before the weights were sent.",
      response.headers.get("x-request-id"),
    );
}

async function send(
  { tenant, adapter, selection, options }: UploadRequest,
  watcher: Watcher,
): Promise<Schemas["Version"]> {
  const form = new FormData();
  form.append("options", JSON.stringify({ ...options, wait: false }));
  if (selection.kind === "archive") form.append("archive", selection.archive);
  else {
    form.append(CONFIG, selection.config, CONFIG);
    form.append(WEIGHTS, selection.weights, WEIGHTS);
  }
  const onProgress: OnProgress = (sent, total) => {
    watcher.onProgress(sent, total);
    if (sent === total) watcher.onStage("validating");
  };
  return postForm(versionsUrl(tenant, adapter), form, onProgress, watcher.signal);
}

function sendParts(
  { tenant, adapter, selection, options }: UploadRequest,
  watcher: Watcher,
): Promise<Schemas["Version"]> {
  const onProgress: OnProgress = (sent, total) => {
    watcher.onStage(sent === total ? "validating" : "sending");
    watcher.onProgress(sent, total);
  };
  const onHashed: OnProgress = (hashed, total) => {
    watcher.onStage("checking");
    watcher.onProgress(hashed, total);
  };
  return sendInParts(
    { tenant, adapter },
    selection,
    { ...options, wait: false },
    { onProgress, onHashed, signal: watcher.signal },
  );
}

async function refusing<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call();
  } catch (error) {
    if (error instanceof ApiError && error.reasons.length > 0)
      throw new Refused(error.reasons, error.message, error.requestId);
    throw error;
  }
}

/** Wait until the smoke check has ended. */
async function settled(tenant: string, version: Schemas["Version"], signal: AbortSignal): Promise<Schemas["Version"]> {
  const path = { tenant, adapter: version.adapter, number: version.version };
  let current = version;
  while (current.state === "validating") {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    signal.throwIfAborted();
    current = await body(
      api.GET("/admin/tenants/{tenant}/adapters/{adapter}/versions/{number}", { params: { path }, signal }),
    );
  }
  if (current.state === "rejected") {
    throw new Refused([], current.state_reason ?? "The smoke check failed.", null);
  }
  return current;
}
