import { CONSOLE_HEADERS, type Schemas, api, body } from "../../../api/client";
import { ApiError, UnreachableError, errorOf } from "../../../api/error";
import { ownPath } from "../../../lib/own-paths";
import { contentDigest, sha256 } from "./digest";
import { CONFIG, type Selection, WEIGHTS } from "./selection";
import type { OnProgress } from "./send";

/** A browser has six connections to a server; the pages need some of them. */
const AT_ONCE = 3;
const ATTEMPTS = 5;
const RETRY_MS = 1_000;

interface Destination {
  tenant: string;
  adapter: string;
}

/** Hooks of an upload in parts. */
export interface PartsWatcher {
  onHashed: OnProgress;
  onProgress: OnProgress;
  signal: AbortSignal;
}

type Upload = Schemas["Upload"];

/**
 * Publish a version in parts. An upload of the same files that was interrupted goes on: also after the page was closed.
 */
export async function sendInParts(
  path: Destination,
  selection: Selection,
  options: Schemas["PublishOptions"],
  watcher: PartsWatcher,
): Promise<Schemas["Version"]> {
  const files = filesOf(selection);
  const announced = await announce(files, watcher);
  const upload = await begin(path, announced, options);
  const missing = missingParts(upload, files);
  const total = [...files.values()].reduce((sum, file) => sum + file.size, 0);
  let sent = total - missing.reduce((sum, part) => sum + part.blob.size, 0);
  watcher.onProgress(sent, total);
  const pending = missing.values();
  const worker = async () => {
    for (const part of pending) {
      await sendPart(path, upload.id, part, watcher.signal);
      sent += part.blob.size;
      watcher.onProgress(sent, total);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  return body(
    api.POST("/admin/tenants/{tenant}/adapters/{adapter}/uploads/{upload}/finish", {
      params: { path: { ...path, upload: upload.id } },
      signal: watcher.signal,
    }),
  );
}

function filesOf(selection: Selection): Map<string, File> {
  if (selection.kind === "archive") return new Map([["archive", selection.archive]]);
  return new Map([
    [CONFIG, selection.config],
    [WEIGHTS, selection.weights],
  ]);
}

type Announced = Schemas["UploadCreate"]["files"];

async function announce(files: ReadonlyMap<string, File>, { onHashed, signal }: PartsWatcher): Promise<Announced> {
  const announced: Announced = {};
  for (const [name, file] of files) {
    announced[name] = { size: file.size, sha256: await sha256(file, (bytes) => onHashed(bytes, file.size), signal) };
  }
  return announced;
}

/** Find the open upload of the same files, or begin a new one. */
async function begin(path: Destination, files: Announced, options: Schemas["PublishOptions"]): Promise<Upload> {
  const url = "/admin/tenants/{tenant}/adapters/{adapter}/uploads";
  const { data } = await body(api.GET(url, { params: { path } }));
  const same = data.find((upload) => upload.state === "open" && isSame(upload.files, files));
  if (same === undefined) return body(api.POST(url, { params: { path }, body: { files, options } }));
  return body(api.GET(`${url}/{upload}`, { params: { path: { ...path, upload: same.id } } }));
}

function isSame(listed: Schemas["ListedUpload"]["files"], announced: Announced): boolean {
  const names = Object.keys(announced);
  return (
    names.length === Object.keys(listed).length &&
    names.every((name) => listed[name]?.sha256 === announced[name]?.sha256)
  );
}

interface Part {
  file: string;
  number: number;
  blob: Blob;
}

function missingParts(upload: Upload, files: ReadonlyMap<string, File>): Part[] {
  return Object.entries(upload.files).flatMap(([name, { parts, part_bytes: bytes, received }]) => {
    const file = files.get(name);
    if (file === undefined) return [];
    const numbers = Array.from({ length: parts }, (_, index) => index + 1).filter(
      (number) => !received.includes(number),
    );
    return numbers.map((number) => ({ file: name, number, blob: file.slice((number - 1) * bytes, number * bytes) }));
  });
}

/** Send a part, again after a failure that may pass. */
async function sendPart(path: Destination, upload: string, part: Part, signal: AbortSignal): Promise<void> {
  const [tenant, adapter, id, file] = [path.tenant, path.adapter, upload, part.file].map(encodeURIComponent);
  const url = ownPath(`/admin/tenants/${tenant}/adapters/${adapter}/uploads/${id}/files/${file}/parts/${part.number}`);
  const content = await part.blob.arrayBuffer();
  const headers = {
    ...CONSOLE_HEADERS,
    "content-type": "application/octet-stream",
    "content-digest": await contentDigest(content),
  };
  for (let attempt = 1; ; attempt += 1) {
    try {
      const response = await fetch(url, { method: "PUT", headers, body: content, signal });
      if (response.ok) return;
      throw await errorOf(response);
    } catch (error) {
      if (signal.aborted) throw error;
      if (attempt === ATTEMPTS || !mayPass(error)) throw error instanceof TypeError ? new UnreachableError() : error;
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS * attempt));
    }
  }
}

function mayPass(error: unknown): boolean {
  return error instanceof TypeError || (error instanceof ApiError && error.isTransient);
}
