// A table that keeps its rows: what is focused stays focused while numbers change.

import { h, put } from "./dom.js";

/**
 * @param {{label: string, columns: Array, key: function, empty?: string}} about
 *   A column has a `label`, and `cell(row)` (text or a node), perhaps `once` (made once a row) and
 *   `num` (a number, to the right).
 */
export function table({ label, columns, key, empty = "Nothing here." }) {
  const body = h("tbody");
  const heads = columns.map((c) => h("th", { scope: "col", class: c.num ? "num" : null }, c.label));
  const nothing = h("p", { class: "empty", hidden: true }, empty);
  const whole = h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, heads)), body);
  const known = new Map();

  function update(rows) {
    const wanted = new Set(rows.map(key));
    for (const [id, line] of known) {
      if (!wanted.has(id)) {
        line.remove();
        known.delete(id);
      }
    }
    rows.forEach((row, i) => {
      let line = known.get(key(row));
      if (!line) {
        line = h("tr", {}, columns.map((c) => h(c.head ? "th" : "td", { class: c.num ? "num" : c.cls, scope: c.head ? "row" : null })));
        known.set(key(row), line);
        columns.forEach((c, n) => c.once && put(line.children[n], c.cell(row)));
      }
      columns.forEach((c, n) => c.once || put(line.children[n], c.cell(row)));
      if (body.children[i] !== line) body.insertBefore(line, body.children[i] ?? null);
    });
    nothing.hidden = rows.length > 0;
    whole.hidden = rows.length === 0;
  }

  const node = h("div", { class: "table" }, whole, nothing);
  scrollable(node, label);
  return { node, update };
}

/** Lets the keyboard scroll what is wider than its place, and nothing else. */
export function scrollable(node, label) {
  new ResizeObserver(() => {
    const wide = node.scrollWidth > node.clientWidth + 1;
    const about = { tabindex: "0", role: "region", "aria-label": `${label}, scrolls sideways` };
    for (const [name, value] of Object.entries(about)) {
      if (wide) node.setAttribute(name, value);
      else node.removeAttribute(name);
    }
  }).observe(node);
}

/** Previous and next, and where one is. */
export function pager(onPage) {
  const where = h("span", { class: "muted" });
  let at = { page: 0, pages: 1 };
  const back = h("button", { type: "button", onclick: () => onPage(at.page - 1) }, "Previous");
  const on = h("button", { type: "button", onclick: () => onPage(at.page + 1) }, "Next");
  const node = h("nav", { class: "pager", "aria-label": "Pages" }, back, where, on);
  return {
    node,
    update(about) {
      at = about;
      node.hidden = about.pages < 2;
      back.disabled = about.page === 0;
      on.disabled = about.page + 1 >= about.pages;
      put(where, `page ${about.page + 1} of ${about.pages}, ${about.total} in all`);
    },
  };
}

/** Big numbers in a row. */
export function tiles(names) {
  const values = Object.fromEntries(names.map((name) => [name, h("dd", {}, "–")]));
  const node = h("dl", { class: "tiles" }, names.map((name) => h("div", {}, h("dt", {}, name), values[name])));
  return { node, update: (given) => Object.entries(given).forEach(([k, v]) => put(values[k], v)) };
}
