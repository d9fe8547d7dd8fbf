// Charts over time, by uPlot (vendored): themed from the style sheet, told to screen readers.

import uPlot from "./vendor/uplot.js";
import { h, put } from "./dom.js";
import { KINDS, ticks, zone } from "./format.js";
import { chosen } from "./windows.js";

let loaded = false;
const clock = (_, times, _axis, _space, step) => times.map((at) => new Date(at * 1000).toTimeString().slice(0, step >= 60 ? 5 : 8));

function loadStyle() {
  if (loaded) return;
  loaded = true;
  document.head.append(h("link", { rel: "stylesheet", href: "/console/static/vendor/uplot.css" }));
}

/** What a colour of the style sheet is now, light or dark. */
function colour(name) {
  const probe = h("span", { vars: { color: `var(${name})` }, hidden: true });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/**
 * @param {{title: string, lines: Array<{label: string, colour: string}>, kind: string}} about
 *   `kind` is one of format.js: how numbers are shown, and which steps the axis has.
 */
export function chart({ title, lines, kind, height = 170 }) {
  loadStyle();
  const { show, steps } = KINDS[kind];
  const frame = h("div", { class: "plot" });
  const values = lines.map(() => h("span"));
  const told = lines.map((line, i) => h("span", { class: "key muted" }, h("i", { vars: { background: `var(${line.colour})` } }), `${line.label} `, values[i]));
  const when = h("span", { class: "muted" });
  const node = h("figure", { class: "chart" }, h("figcaption", {}, h("b", {}, title), " ", told, when), frame);
  let plot = null;
  let data = [[], ...lines.map(() => [])];

  function draw() {
    plot?.destroy();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    plot = new uPlot(
      {
        width: Math.max(200, frame.clientWidth),
        height,
        padding: [10, 26, 0, 0],
        cursor: { drag: { x: false, y: false } },
        legend: { show: false },
        hooks: { setCursor: [(self) => tell(self.cursor.idx)] },
        scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
        axes: [{ ...axis, size: 26, space: 84, values: clock }, { ...axis, size: 64, space: 28, incrs: steps, values: (_, values) => ticks(kind, values) }],
        series: [
          {},
          ...lines.map((line, i) => ({
            label: line.label,
            stroke: colour(line.colour),
            fill: i === 0 ? `color-mix(in srgb, ${colour(line.colour)} 14%, transparent)` : undefined,
            width: 1.6,
            points: { show: false },
          })),
        ],
      },
      data,
      frame,
    );
  }

  /** Tells the numbers under the pointer, or the newest. */
  function tell(index) {
    const at = index ?? data[0].length - 1;
    values.forEach((each, i) => put(each, show(data[i + 1][at] ?? null)));
    put(when, index === null || index === undefined ? "" : `${clock(null, [data[0][at]])[0]} ${zone(data[0][at] * 1000)}`);
  }

  const resized = new ResizeObserver(() => {
    if (frame.clientWidth && plot && Math.abs(plot.width - frame.clientWidth) > 2) {
      plot.setSize({ width: frame.clientWidth, height });
    }
  });
  resized.observe(frame);
  document.addEventListener("themed", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  return {
    node,
    set(times, ...series) {
      data = [times, ...series];
      if (plot) plot.setData(data);
      else if (frame.isConnected) draw();
      if (plot?.cursor.idx == null) tell(null);
      const now = lines.map((line, i) => `${line.label} ${show(series[i].at(-1) ?? null)}`).join(", ");
      node.setAttribute("aria-label", `${title} over the last ${chosen().name}; now ${now}`);
    },
    stop() {
      resized.disconnect();
      document.removeEventListener("themed", draw);
      matchMedia("(prefers-color-scheme: dark)").removeEventListener("change", draw);
      plot?.destroy();
      plot = null;
    },
  };
}
