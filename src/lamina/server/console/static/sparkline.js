// A line the size of a word: the trend of a series beside its newest number.

import { svg } from "./dom.js";

const [WIDTH, HEIGHT] = [96, 22];

/** Draws numbers, oldest first; nulls are gaps. */
export function sparkline(values, label) {
  const known = values.filter((v) => v !== null);
  const top = Math.max(...known, 0) || 1;
  const step = WIDTH / Math.max(1, values.length - 1);
  let path = "";
  let pen = false;
  values.forEach((value, i) => {
    if (value === null) {
      pen = false;
      return;
    }
    const y = HEIGHT - 2 - (value / top) * (HEIGHT - 4);
    path += `${pen ? "L" : "M"}${(i * step).toFixed(1)} ${y.toFixed(1)}`;
    pen = true;
  });
  const first = values.findIndex((v) => v !== null);
  const area = path && `${path}L${WIDTH} ${HEIGHT}L${(first * step).toFixed(1)} ${HEIGHT}Z`;
  return svg(
    "svg",
    { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": label },
    svg("path", { class: "area", d: area }),
    svg("path", { class: "line", d: path }),
  );
}
