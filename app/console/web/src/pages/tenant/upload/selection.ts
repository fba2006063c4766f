import type { Schemas } from "../../../api/client";
import type { Reason } from "../../../api/error";
import type { FoundFile } from "./folder";

export const CONFIG = "adapter_config.json";
export const WEIGHTS = "adapter_model.safetensors";
const PICKLE = "adapter_model.bin";
const ARCHIVE = /\.(zip|tar\.gz|tgz)$/i;

/** What is to be uploaded: the two files of an adapter, or an archive with them. */
export type Selection =
  { kind: "folder"; config: File; weights: File; others: string[] } | { kind: "archive"; archive: File };

/** Find the adapter among the chosen files, or say why there is none. The shallowest folder with a config counts. */
export function selectionOf(found: readonly FoundFile[]): Selection | Reason[] {
  const archives = found.filter(({ file }) => ARCHIVE.test(file.name));
  if (archives[0] !== undefined && found.length === 1) return { kind: "archive", archive: archives[0].file };
  const configs = found.filter(({ file }) => file.name === CONFIG);
  const depths = configs.map(({ path }) => path.split("/").length);
  const shallowest = configs.filter((_, index) => depths[index] === Math.min(...depths));
  const [config, second] = shallowest;
  if (config === undefined) return [missing(CONFIG, names(found))];
  if (second !== undefined) return [severalAdapters(shallowest)];
  const folder = config.path.slice(0, -CONFIG.length);
  const inFolder = found.filter(({ path }) => path.startsWith(folder) && !path.slice(folder.length).includes("/"));
  const weights = inFolder.find(({ file }) => file.name === WEIGHTS);
  if (weights === undefined)
    return [inFolder.some(({ file }) => file.name === PICKLE) ? pickle(PICKLE) : missing(WEIGHTS, names(inFolder))];
  const others = inFolder.map(({ file }) => file.name).filter((name) => name !== CONFIG && name !== WEIGHTS);
  return { kind: "folder", config: config.file, weights: weights.file, others };
}

function names(found: readonly FoundFile[]): string {
  return (
    found
      .slice(0, 5)
      .map(({ path }) => path)
      .join(", ") || "no file"
  );
}

export function reason(code: string, field: string, found: string, allowed: string, message: string): Reason {
  return { code, field, found, allowed, message, count: 1, examples: [field] };
}

function missing(file: string, found: string): Reason {
  return reason(
    "file_missing",
    file,
    found,
    `a folder with ${CONFIG} and ${WEIGHTS}`,
    "Choose the folder that PEFT's save_pretrained wrote, or an archive of it.",
  );
}

function severalAdapters(configs: readonly FoundFile[]): Reason {
  const paths = configs.map(({ path }) => path).join(", ");
  return reason(
    "several_adapters",
    CONFIG,
    paths,
    "one adapter",
    "Choose the folder of one adapter, for example the checkpoint to publish.",
  );
}

function pickle(file: string): Reason {
  const message =
    "A pickle can run code, so it is not accepted. Save the adapter with safe_serialization=True, or use tenora adapters push --convert.";
  return reason("pickle_format", file, "a pickle", WEIGHTS, message);
}

/** Check what a browser can see without reading the weights: the kind of the config, and the header's length. */
export async function firstCheck(config: File, weights: File, caps: Schemas["UploadCaps"]): Promise<Reason[]> {
  return [...(await configReasons(config, caps)), ...(await weightsReasons(weights, caps))];
}

async function configReasons(file: File, caps: Schemas["UploadCaps"]): Promise<Reason[]> {
  if (file.size > caps.config_bytes) {
    const message = "PEFT's config has a few kilobytes. Save the adapter again.";
    const allowed = `at most ${caps.config_bytes} bytes`;
    return [reason("config_too_large", CONFIG, `${file.size} bytes`, allowed, message)];
  }
  const config = parseObject(await file.text());
  if (config === null) {
    const message = "The config is damaged. Save the adapter again with PEFT.";
    return [reason("config_not_json", CONFIG, "no JSON object", "a JSON object", message)];
  }
  if (config.peft_type === "LORA") return [];
  const message = "The server serves LoRA adapters only.";
  return [reason("unsupported_peft_type", "peft_type", String(config.peft_type), "LORA", message)];
}

async function weightsReasons(weights: File, caps: Schemas["UploadCaps"]): Promise<Reason[]> {
  const prefix = new Uint8Array(await weights.slice(0, 4).arrayBuffer());
  // A zip of torch, or a bare pickle.
  if ((prefix[0] === 0x50 && prefix[1] === 0x4b) || prefix[0] === 0x80) return [pickle(WEIGHTS)];
  if (weights.size > caps.weights_bytes) {
    const message = "Train with a smaller rank or fewer modules, or save in a half-precision type.";
    return [reason("file_too_large", WEIGHTS, `${weights.size} bytes`, `at most ${caps.weights_bytes} bytes`, message)];
  }
  const end = await headerEnd(weights);
  if (end > caps.header_bytes + 8 && end !== Infinity) {
    const message = "The header is no safetensors header, or has too many tensors. Save the adapter again.";
    return [
      reason("header_too_long", WEIGHTS, `${end - 8} bytes`, `a header of at most ${caps.header_bytes} bytes`, message),
    ];
  }
  if (end <= weights.size) return [];
  const message = "The file is cut off. Save or download the adapter again.";
  return [reason("truncated", WEIGHTS, `${weights.size} bytes`, "a whole safetensors file", message)];
}

/** Return where the header of a safetensors file ends: its first 8 bytes are the length, little-endian. */
export async function headerEnd(weights: File): Promise<number> {
  const prefix = await weights.slice(0, 8).arrayBuffer();
  return prefix.byteLength < 8 ? Infinity : 8 + Number(new DataView(prefix).getBigUint64(0, true));
}

function parseObject(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? { ...value } : null;
  } catch {
    return null;
  }
}
