import { CONSOLE_HEADERS } from "../../../api/client";
import { UnreachableError, errorFrom } from "../../../api/error";
import { ownPath } from "../../../lib/own-paths";

/** Progress of a body: bytes sent and all bytes. */
export type OnProgress = (sent: number, total: number) => void;

/** Post a form. Unlike fetch, XMLHttpRequest says how much of the body has been sent. */
export function postForm<T>(url: string, form: FormData, onProgress: OnProgress, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", url);
    for (const [name, value] of Object.entries(CONSOLE_HEADERS)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => onProgress(event.loaded, event.total);
    request.upload.onload = (event) => onProgress(event.total, event.total);
    request.onerror = () => reject(new UnreachableError());
    request.onabort = () => reject(signal.reason);
    request.onload = () => {
      if (request.status >= 200 && request.status < 300) resolve(JSON.parse(request.responseText) as T);
      else reject(errorFrom(request.status, request.responseText, (name) => request.getResponseHeader(name)));
    };
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(form);
  });
}

export function versionsUrl(tenant: string, adapter: string): string {
  return ownPath(`/admin/tenants/${encodeURIComponent(tenant)}/adapters/${encodeURIComponent(adapter)}/versions`);
}
