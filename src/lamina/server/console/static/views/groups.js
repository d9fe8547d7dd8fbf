// Consumer groups: who is behind, by how many records and by how long, and who their members are.

import { feed } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, seconds } from "../format.js";
import { sparkline } from "../sparkline.js";
import { pager, table } from "../table.js";
import { watch } from "../watch.js";
import { memberTable } from "./members.js";

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

const MEMBERS = { label: "Members", num: true, cell: (row) => count(row.members) };

export function view(main, { topic = "" }) {
  const asked = { search: "", page: 0, topic };
  const askedMembers = { search: "", page: 0 };
  const search = h("input", {
    type: "search",
    placeholder: "Search groups",
    "aria-label": "Search groups",
    oninput: () => {
      Object.assign(askedMembers, { search: search.value, page: 0 });
      again(asked, { search: search.value, page: 0 });
    },
  });
  const list = table({ label: "Consumer groups", key: (row) => `${row.topic}/${row.group}`, columns: [...COLUMNS.slice(0, -1), MEMBERS, COLUMNS.at(-1)], empty: "No consumer groups yet." });
  const pages = pager((page) => again(asked, { page }));
  const members = memberTable({ grouped: true, empty: "No group has members." });
  const memberPages = pager((page) => again(askedMembers, { page }));
  main.append(h("div", { class: "head" }, !topic && h("h1", {}, "Consumer groups"), h("span", { class: "grow" }), search), list.node, pages.node);
  if (!topic) main.append(h("h2", {}, "Members"), members.node, memberPages.node);
  const eyes = watch(async (signal) => {
    const found = await feed("groups", asked, signal);
    list.update(found.rows);
    pages.update(found);
    if (topic) return;
    const there = await feed("members", askedMembers, signal);
    members.update(there.rows);
    memberPages.update(there);
  });
  function again(what, change) {
    Object.assign(what, change);
    eyes.now();
  }
  return eyes;
}
