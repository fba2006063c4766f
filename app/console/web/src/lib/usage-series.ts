import type { Schemas } from "../api/client";

type Group = Schemas["UsageGroup"];

export interface UsageSeries {
  times: number[];
  requests: number[];
  tokens: number[];
}

/** Sum groups that have a start over their steps of time. Steps without a request count as zero. */
export function usageSeries(groups: readonly Group[], start: string, end: string, stepS: number): UsageSeries {
  const sums = new Map<number, { requests: number; tokens: number }>();
  const first = Math.floor(Date.parse(start) / 1000 / stepS) * stepS;
  for (let at = first; at < Date.parse(end) / 1000; at += stepS) sums.set(at, { requests: 0, tokens: 0 });
  for (const group of groups) {
    const sum = group.start == null ? undefined : sums.get(Date.parse(group.start) / 1000);
    if (sum === undefined) continue;
    sum.requests += group.requests;
    sum.tokens += group.prompt_tokens + group.output_tokens;
  }
  const steps = [...sums.values()];
  return {
    times: [...sums.keys()],
    requests: steps.map((step) => step.requests),
    tokens: steps.map((step) => step.tokens),
  };
}
