// The records of a block: their beginnings, one a line.

import { feed } from "../api.js";
import { h, note } from "../dom.js";
import { bytes, count, moment, zoned } from "../format.js";
import { table } from "../table.js";
import { exportSearch } from "./exporting.js";

/** The beginning of a key or a value; bytes that are no text in hex. */
export function beginning(part) {
  if (part === null || part === undefined) return h("span", { class: "null" }, "null");
  if (part.hex !== undefined) return h("span", { class: "hex" }, `0x${part.hex}${part.cut ? "…" : ""}`);
  return h("span", { class: "text" }, `${part.text}${part.cut ? "…" : ""}`);
}

/** Shows up to 200 records from `start` to `until`, with more on demand. */
export function recordList(place, { topic, partition, start, until, open, shown }) {
  const rows = [];
  const list = table({
    label: "Records",
    key: (row) => row.offset,
    empty: "No records: they were deleted.",
    columns: [
      { label: "Offset", head: true, once: true, num: true, cell: (row) => h("button", { type: "button", class: "link", onclick: () => open(row.offset) }, count(row.offset)) },
      { label: zoned("Time"), once: true, cls: "mono", cell: (row) => moment(row.timestamp_ms) },
      { label: "Key", once: true, cls: "mono cut", cell: (row) => beginning(row.key ?? row.tag) },
      { label: "Size", once: true, num: true, cell: (row) => (row.value ? bytes(row.value.size) : "–") },
      { label: "Value", once: true, cls: "mono cut wide", cell: (row) => beginning(row.value) },
    ],
  });
  const more = h("button", { type: "button", hidden: true, onclick: () => load(rows.at(-1).offset + 1) }, "More");
  const gap = h("p", { class: "problem", hidden: true });
  const save = h("button", { type: "button", hidden: true, onclick: () => exportSearch(topic, () => ({ partition, start, end: until })) }, "Export…");
  place.replaceChildren(list.node, gap, h("p", { class: "bar" }, more, save));
  place.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.matches("button.link")) return;
    const all = [...place.querySelectorAll("button.link")];
    all[all.indexOf(event.target) + step]?.focus();
    event.preventDefault();
  });

  async function load(from) {
    const found = await feed("records", { topic, partition, start: from, end: until });
    rows.push(...found.rows);
    list.update(rows);
    save.hidden = rows.length === 0;
    gap.hidden = !found.gap;
    if (found.gap) gap.textContent = `Offsets ${count(found.gap.first)} to ${count(found.gap.end - 1)} are missing: ${found.gap.reason}.`;
    more.hidden = !found.rows.length || found.rows.at(-1).offset + 1 >= until;
  }
  load(start).then(shown, (error) => note(error.message, "bad"));
  return {};
}
