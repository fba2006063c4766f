const whole = new Intl.NumberFormat("en");
const decimal = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
/** Three digits, but never fewer than those before the point. */
const rounded = new Intl.NumberFormat("en", {
  maximumSignificantDigits: 3,
  maximumFractionDigits: 0,
  roundingPriority: "morePrecision",
});
const percent = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });
const moment = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const days = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const minutes = new Intl.DateTimeFormat("en-GB", { timeStyle: "short" });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"] as const;

export const NONE = "–";

export function count(value: number | null | undefined): string {
  return value == null ? NONE : whole.format(value);
}

export function number(value: number | null | undefined): string {
  return value == null ? NONE : decimal.format(value);
}

export function share(value: number | null | undefined): string {
  return value == null ? NONE : percent.format(value);
}

export function bytes(value: number | null | undefined): string {
  if (value == null) return NONE;
  const power = Math.min(UNITS.length - 1, value < 1 ? 0 : Math.floor(Math.log2(value) / 10));
  return `${rounded.format(value / 1024 ** power)} ${UNITS[power]}`;
}

export function seconds(value: number | null | undefined): string {
  if (value == null) return NONE;
  if (value < 1) return `${rounded.format(value * 1000)} ms`;
  if (value < 120) return `${rounded.format(value)} s`;
  return value < 7200 ? `${rounded.format(value / 60)} min` : `${rounded.format(value / 3600)} h`;
}

/** Format an amount, which comes as a decimal string so that no digit is lost. */
export function money(value: string | null | undefined, currency: string): string {
  return value == null ? NONE : `${value} ${currency}`;
}

/** Format a time of ISO 8601, or one in seconds since 1970. */
export function time(value: string | number | null | undefined): string {
  if (value == null) return NONE;
  return moment.format(typeof value === "number" ? value * 1000 : new Date(value));
}

/** Format the day of a time in seconds since 1970: `30 Nov`. */
export function day(value: number): string {
  return days.format(value * 1000);
}

/** Format the time of day of a time in seconds since 1970. */
export function timeOfDay(value: number, { withSeconds }: { withSeconds: boolean }): string {
  return (withSeconds ? clock : minutes).format(value * 1000);
}

/** Format the targets of an alias: `3`, or `1: 95 %, 2: 5 %`. */
export function weights(targets: Readonly<Record<string, number>>): string {
  const entries = Object.entries(targets);
  const total = entries.reduce((sum, [, weight]) => sum + weight, 0);
  if (entries.length === 1) return `version ${entries[0]?.[0]}`;
  return entries.map(([version, weight]) => `version ${version}: ${share(weight / total)}`).join(", ");
}

export function plural(value: number, noun: string): string {
  return `${whole.format(value)} ${noun}${value === 1 ? "" : "s"}`;
}
