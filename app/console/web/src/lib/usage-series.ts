import type { Schemas } from "../api/client";

type Point = Schemas["UsagePoint"];

export interface UsageSeries {
  times: number[];
  points: (Point | undefined)[];
}

/** Place the points of a report on all its steps of time. The server leaves out steps without a request. */
export function usageSeries(data: readonly Point[], start: string, end: string, stepS: number): UsageSeries {
  const byTime = new Map(data.map((point) => [Date.parse(point.start) / 1000, point]));
  const times: number[] = [];
  for (let at = Date.parse(start) / 1000; at < Date.parse(end) / 1000; at += stepS) times.push(at);
  return { times, points: times.map((at) => byTime.get(at)) };
}
