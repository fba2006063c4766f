import { useMemo } from "react";
import type { Schemas } from "../api/client";
import { usageSeries } from "../lib/usage-series";
import { Chart } from "./chart";

/** Requests, tokens and time to first token over time. */
export function UsageCharts({ series, stepS }: { series: Schemas["UsageSeries"]; stepS: number }) {
  const { times, requests, tokens, ttft } = useMemo(() => {
    const { times, points } = usageSeries(series.data, series.start, series.end, stepS);
    const values = (of: (point: Schemas["UsagePoint"]) => number | null, empty: number | null = 0) =>
      points.map((point) => (point === undefined ? empty : of(point)));
    return {
      times,
      requests: [
        { name: "requests", values: values((point) => point.requests) },
        { name: "failed", values: values((point) => point.failed) },
        { name: "cold loads", values: values((point) => point.cold_loads) },
      ],
      tokens: [
        { name: "prompt tokens", values: values((point) => point.prompt_tokens) },
        { name: "output tokens", values: values((point) => point.output_tokens) },
      ],
      ttft: [
        { name: "TTFT p50, s", values: values((point) => point.ttft.p50, null) },
        { name: "p95, s", values: values((point) => point.ttft.p95, null) },
        { name: "p99, s", values: values((point) => point.ttft.p99, null) },
      ],
    };
  }, [series, stepS]);
  return (
    <div className="columns">
      <Chart label="Requests over time" times={times} series={requests} />
      <Chart label="Tokens over time" times={times} series={tokens} />
      <Chart label="Time to first token over time" times={times} series={ttft} />
    </div>
  );
}
