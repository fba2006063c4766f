import type { DigestMessage } from "./digest-worker";
import workerUrl from "./digest-worker?worker&url";

interface TrustedTypes {
  createPolicy: (
    name: string,
    rules: { createScriptURL: (url: string) => string },
  ) => { createScriptURL: (url: string) => string };
}

/** The policy of the page lets a worker start from a checked address only. There is one: that of the build. */
const trustedTypes = (globalThis as { trustedTypes?: TrustedTypes }).trustedTypes;
const policy = trustedTypes?.createPolicy("tenora-worker", { createScriptURL: () => workerUrl });

/** Return the SHA-256 of a file as hex. A worker computes it, so that the page stays usable. */
export function sha256(file: Blob, onHashed: (bytes: number) => void, signal: AbortSignal): Promise<string> {
  const worker = new Worker(policy?.createScriptURL(workerUrl) ?? workerUrl, { type: "module" });
  const result = new Promise<string>((resolve, reject) => {
    worker.onmessage = ({ data }: MessageEvent<DigestMessage>) => {
      if ("digest" in data) resolve(data.digest);
      else if ("error" in data) reject(new Error(data.error));
      else onHashed(data.hashed);
    };
    worker.onerror = () => reject(new Error("The digest of the file could not be computed."));
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    worker.postMessage(file);
  });
  return result.finally(() => worker.terminate());
}

/** Return the digest of a part in the form of the header `content-digest`. */
export async function contentDigest(part: ArrayBuffer): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", part));
  return `sha-256=:${btoa(String.fromCharCode(...digest))}:`;
}
