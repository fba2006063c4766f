import { useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { day, number, time, timeOfDay } from "../lib/format";

export interface Series {
  name: string;
  values: readonly (number | null)[];
}

interface Props {
  /** What the chart shows. The page has the same figures as a table. */
  label: string;
  /** Seconds since 1970, rising. */
  times: readonly number[];
  series: readonly Series[];
}

const HEIGHT = 200;
const LEAST_S = 60;
const DAY_S = 86_400;
const COLOURS = ["--accent", "--warning", "--success", "--error"] as const;

/** Lines over time, with the values at the pointer. It follows the width of its place and the theme. */
export function Chart({ label, times, series }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [pointed, setPointed] = useState<number | null>(null);
  const names = series.map(({ name }) => name).join("\n");

  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const chart = new uPlot(options(names.split("\n"), element.clientWidth, setPointed), [[]], element);
    plot.current = chart;
    const resize = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: HEIGHT }));
    resize.observe(element);
    const redraw = () => chart.redraw();
    const themes = new MutationObserver(redraw);
    themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", redraw);
    return () => {
      resize.disconnect();
      themes.disconnect();
      dark.removeEventListener("change", redraw);
      chart.destroy();
      plot.current = null;
    };
  }, [names]);

  useEffect(() => {
    plot.current?.setData([[...times], ...series.map(({ values }) => [...values])]);
  }, [times, series, names]);

  return (
    <figure className="chart">
      <figcaption>{label}</figcaption>
      <div ref={place} role="img" aria-label={label} />
      <ul className="legend">
        {series.map(({ name, values }, index) => (
          <li key={name}>
            <span className={`swatch swatch-${index}`} aria-hidden="true" /> {name}
            {pointed !== null && ` ${number(values[pointed])}`}
          </li>
        ))}
        {pointed !== null && <li>{time(times[pointed])}</li>}
      </ul>
    </figure>
  );
}

function options(names: readonly string[], width: number, onPointed: (index: number | null) => void): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: () => colour("--quiet"),
    grid: { stroke: () => colour("--line") },
    ticks: { show: false },
  };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    hooks: { setCursor: [(plot) => onPointed(plot.cursor.idx ?? null)] },
    scales: {
      x: { range: (plot) => period(plot.data[0]) },
      y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.05 : 1] },
    },
    axes: [
      { ...axis, space: 60, values: (_plot, splits, _index, _space, step) => timeLabels(splits, step) },
      { ...axis, size: 70 },
    ],
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

/** First and last time of the axis. For a single point, uPlot itself would choose years. */
function period(times: ArrayLike<number>): [number, number] {
  const last = times[times.length - 1] ?? Date.now() / 1000;
  return [Math.min(times[0] ?? last, last - LEAST_S), last];
}

/** Label the ticks with the time of day, and the first of each day also with the day. */
function timeLabels(ticks: readonly number[], step: number): string[] {
  return ticks.map((at, index) => {
    const before = ticks[index - 1];
    if (step >= DAY_S) return day(at);
    const label = timeOfDay(at, { withSeconds: step < LEAST_S });
    return before !== undefined && day(before) === day(at) ? label : `${label}\n${day(at)}`;
  });
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
