// A plot of load over time, drawn by uPlot, which is loaded with the first plot.

import { colourOf, make, setText } from "./dom.js";

const HEIGHT_PX = 190;
const GAP_S = 5; // a hole in the data this long is a hole in the line

let library = null;

export class Plot {
  /** `format` writes a value; `top` is the highest value when it is known, `floor` the least height of the scale. */
  constructor({ title, format, top = null, floor = 1 }) {
    Object.assign(this, { format, top, floor });
    this.now = make("span", { className: "plot-now" });
    this.canvas = make("div", { className: "plot-canvas" });
    this.element = make("figure", { className: "plot" }, make("figcaption", {}, make("span", {}, title), this.now), this.canvas);
    this.shape = "";
    this.chart = null;
    this.resizing = new ResizeObserver(() => this.chart?.setSize(this.size()));
    this.resizing.observe(this.canvas);
  }

  size() {
    return { width: Math.max(200, this.canvas.clientWidth), height: HEIGHT_PX };
  }

  /** `series` are {label, colour (a custom property), fill, values}, all as long as `times` (seconds since the epoch). */
  async draw(times, series, windowS, told) {
    setText(this.now, told);
    library ??= import("./vendor/uPlot.esm.js");
    const { default: UPlot } = await library;
    this.window = windowS;
    const shape = series.map(each => each.label + each.colour).join("|");
    const data = withGaps(times, series.map(each => each.values));
    if (this.chart && shape === this.shape) {
      this.chart.setData(data);
    } else {
      this.forget();
      this.shape = shape;
      this.chart = new UPlot(this.options(series, UPlot), data, this.canvas);
    }
  }

  /** Colours are taken anew with the next drawing. */
  forget() {
    this.chart?.destroy();
    this.chart = null;
  }

  options(series, UPlot) {
    const text = colourOf("--muted");
    const line = colourOf("--line");
    const axis = { stroke: text, font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: line, width: 1 } };
    return {
      ...this.size(),
      padding: [8, 26, 0, 0],
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      legend: { show: series.length > 1, live: true },
      hooks: { draw: [tellOfNow] },
      scales: {
        x: { time: true, range: (chart, low, high) => [high - this.window, high] },
        y: { range: (chart, low, high) => [0, this.top ?? Math.max(this.floor, (high ?? 0) * 1.1)] },
      },
      axes: [
        { ...axis, size: 28, grid: { show: false }, incrs: () => this.window < 300 ? [10, 15, 30, 60] : [60, 120, 300], values: (chart, splits) => splits.map(this.window < 300 ? clock : hour) },
        { ...axis, size: 52, space: 30, values: (chart, splits) => splits.map(this.format) },
      ],
      series: [
        { value: (chart, at) => at === null ? "" : clock(at) },
        ...series.map(each => {
          const colour = colourOf(each.colour);
          return {
            label: each.label, stroke: colour, width: each.fill ? 2 : 1.25, points: { show: false }, spanGaps: false,
            fill: each.fill ? colour.replace("rgb(", "rgba(").replace(")", ", 0.14)") : undefined,
            paths: UPlot.paths.linear(), value: (chart, value) => value === null ? "–" : this.format(value),
          };
        }),
      ],
    };
  }
}

/** The legend tells of where the pointer is, else of now. */
function tellOfNow(chart) {
  if (!(chart.cursor.left >= 0)) chart.setLegend({ idx: chart.data[0].length - 1 }, false);
}

const hour = at => clock(at).slice(0, 5);
const clock = at => new Date(at * 1000).toLocaleTimeString("en-GB");

function withGaps(times, columns) {
  const holes = new Set(times.flatMap((at, index) => index && at - times[index - 1] > GAP_S ? [index] : []));
  if (!holes.size) return [times, ...columns];
  const spread = (values, filler) => values.flatMap((value, index) => holes.has(index) ? [filler(index), value] : [value]);
  return [spread(times, index => times[index - 1] + 1), ...columns.map(values => spread(values, () => null))];
}
