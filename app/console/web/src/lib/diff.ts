export interface Part {
  kind: "same" | "added" | "removed";
  text: string;
}

/** Longest texts that are compared, in words: the table has the product of both. */
const MOST_WORDS = 1_500;

/** Compare two texts word by word. Null: they are too long. */
export function wordDiff(before: string, after: string): Part[] | null {
  const [a, b] = [words(before), words(after)];
  if (a.length > MOST_WORDS || b.length > MOST_WORDS) return null;
  const common = commonLengths(a, b);
  const parts: Part[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    const [left, right] = [a[i], b[j]];
    if (left !== undefined && left === right) {
      add(parts, "same", left);
      i += 1;
      j += 1;
    } else if (right !== undefined && (left === undefined || at(common, i, j + 1) >= at(common, i + 1, j))) {
      add(parts, "added", right);
      j += 1;
    } else if (left !== undefined) {
      add(parts, "removed", left);
      i += 1;
    }
  }
  return parts;
}

function words(text: string): string[] {
  return text.match(/\s+|[^\s]+/g) ?? [];
}

/** Return for each pair of places the length of the longest common subsequence behind them. */
function commonLengths(a: readonly string[], b: readonly string[]): Uint16Array[] {
  const rows = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const row = rows[i];
      if (row !== undefined)
        row[j] = a[i] === b[j] ? at(rows, i + 1, j + 1) + 1 : Math.max(at(rows, i + 1, j), at(rows, i, j + 1));
    }
  }
  return rows;
}

function at(rows: readonly Uint16Array[], i: number, j: number): number {
  return rows[i]?.[j] ?? 0;
}

function add(parts: Part[], kind: Part["kind"], text: string): void {
  const last = parts.at(-1);
  if (last?.kind === kind) last.text += text;
  else parts.push({ kind, text });
}
