// Consumer groups: who is behind, by how many records and by how long.

import { feed } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, seconds } from "../format.js";
import { sparkline } from "../sparkline.js";
import { pager, table } from "../table.js";
import { watch } from "../watch.js";

export const groupHref = (row) => `#/group/${encodeURIComponent(row.topic)}/${encodeURIComponent(row.group)}`;

/** The columns that every list of groups has. */
export const COLUMNS = [
  { label: "Group", head: true, once: true, cell: (row) => h("a", { href: groupHref(row) }, row.group) },
  { label: "Topic", once: true, cell: (row) => row.topic },
  { label: "Lag, records", num: true, cell: (row) => count(row.records) },
  { label: "Lag, time", num: true, cell: (row) => seconds(row.seconds) },
  { label: "Lag, bytes", num: true, cell: (row) => bytes(row.bytes) },
  { label: "In flight", num: true, cell: (row) => count(row.inflight) },
  { label: "Trend", cls: "trend", cell: (row) => sparkline(row.trend, `${row.group}: lag in records, the last two minutes`) },
];

export function view(main, { topic = "" }) {
  const asked = { search: "", page: 0, topic };
  const search = h("input", {
    type: "search",
    placeholder: "Search groups",
    "aria-label": "Search groups",
    oninput: () => again({ search: search.value, page: 0 }),
  });
  const list = table({ label: "Consumer groups", key: (row) => `${row.topic}/${row.group}`, columns: COLUMNS, empty: "No consumer groups yet." });
  const pages = pager((page) => again({ page }));
  main.append(h("div", { class: "head" }, !topic && h("h1", {}, "Consumer groups"), h("span", { class: "grow" }), search), list.node, pages.node);
  const eyes = watch(async (signal) => {
    const found = await feed("groups", asked, signal);
    list.update(found.rows);
    pages.update(found);
  });
  function again(change) {
    Object.assign(asked, change);
    eyes.now();
  }
  return eyes;
}
