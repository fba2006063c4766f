import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";

/** Message of the worker: bytes hashed so far, or the digest as hex. */
export type DigestMessage = { hashed: number } | { digest: string } | { error: string };

const CHUNK_BYTES = 8 * 1024 * 1024;

/** Hash a file piece by piece: the browser's own digest needs all of it in memory. */
async function digestOf(file: Blob): Promise<string> {
  const hash = sha256.create();
  for (let start = 0; start < file.size; start += CHUNK_BYTES) {
    const chunk = file.slice(start, start + CHUNK_BYTES);
    hash.update(new Uint8Array(await chunk.arrayBuffer()));
    postMessage({ hashed: start + chunk.size } satisfies DigestMessage);
  }
  return bytesToHex(hash.digest());
}

addEventListener("message", ({ data }: MessageEvent<Blob>) => {
  digestOf(data).then(
    (digest) => postMessage({ digest } satisfies DigestMessage),
    () => postMessage({ error: "The file cannot be read. It may have changed." } satisfies DigestMessage),
  );
});
