export const MOST_PROMPTS = 20;

/**
 * Read prompts from a file: JSON lines with a `prompt` or `inputs`, or one prompt a line.
 *
 * Throws an Error that says what is wrong.
 */
export async function promptsOf(file: File): Promise<string[]> {
  const lines = (await file.text()).split(/\r?\n/).filter((line) => line.trim() !== "");
  const prompts = /\.jsonl?$/i.test(file.name) ? lines.map(fromJson) : lines;
  if (prompts.length === 0) throw new Error("The file has no prompt. Write one on each line.");
  if (prompts.length > MOST_PROMPTS) {
    throw new Error(`The file has ${prompts.length} prompts. At most ${MOST_PROMPTS} fit; use a batch for more.`);
  }
  return prompts;
}

function fromJson(line: string, index: number): string {
  try {
    const value: unknown = JSON.parse(line);
    if (typeof value === "string") return value;
    if (typeof value === "object" && value !== null) {
      const text = "prompt" in value ? value.prompt : "inputs" in value ? value.inputs : undefined;
      if (typeof text === "string") return text;
    }
  } catch {
    // The message below covers both.
  }
  throw new Error(`Line ${index + 1} is no JSON object with a prompt. Write {"prompt": "..."} on each line.`);
}
