import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Series {
  name: string;
  values: readonly (number | null)[];
}

interface Props {
  /** What the chart shows, for screen readers. The page has the same figures as a table. */
  label: string;
  /** Seconds since 1970, rising. */
  times: readonly number[];
  series: readonly Series[];
}

const HEIGHT = 220;
const LEAST_S = 60;
const COLOURS = ["--accent", "--warning", "--success", "--error"] as const;

/** Lines over time. It follows the width of its place and the theme. */
export function Chart({ label, times, series }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const names = series.map(({ name }) => name).join("\n");

  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const chart = new uPlot(options(names.split("\n"), element.clientWidth), [[]], element);
    plot.current = chart;
    const resize = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: HEIGHT }));
    resize.observe(element);
    const themes = new MutationObserver(() => chart.redraw());
    themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      resize.disconnect();
      themes.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [names]);

  useEffect(() => {
    plot.current?.setData([[...times], ...series.map(({ values }) => [...values])]);
  }, [times, series, names]);

  return <div ref={place} className="chart" role="img" aria-label={label} />;
}

function options(names: readonly string[], width: number): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: () => colour("--quiet"),
    grid: { stroke: () => colour("--line") },
    ticks: { show: false },
  };
  return {
    width,
    height: HEIGHT,
    cursor: { drag: { x: false, y: false } },
    scales: {
      // A single point would show years.
      x: { range: (_plot, low, high) => [Math.min(low, high - LEAST_S), high] },
      y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.05 : 1] },
    },
    axes: [axis, { ...axis, size: 70 }],
    series: [
      {},
      ...names.map((name, index) => ({
        label: name,
        width: 2,
        stroke: () => colour(COLOURS[index % COLOURS.length] ?? "--accent"),
        points: { size: 5, filter: isolated },
      })),
    ],
  };
}

/** Choose the points of a dense chart that no line touches: they would be invisible. */
function isolated(plot: uPlot, series: number, areAllShown: boolean): number[] | null {
  if (areAllShown) return null;
  const values = plot.data[series] ?? [];
  return Array.from(values.keys()).filter(
    (at) => values[at] != null && values[at - 1] == null && values[at + 1] == null,
  );
}

function colour(token: string): string {
  // A token may hold both themes' colours; a style resolves it to the one in use.
  const probe = document.createElement("span");
  probe.style.color = `var(${token})`;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}
