// All topics: rates, sizes, trends. Searched, sorted and paged by the server.

import { act, feed } from "../api.js";
import { ask, settingsOf } from "../dialog.js";
import { h } from "../dom.js";
import { bytes, count, short } from "../format.js";
import { sparkline } from "../sparkline.js";
import { pager, table, tiles } from "../table.js";
import { watch } from "../watch.js";

const FORMATS = ["keratin", "frame", "wal"];
const ORDERS = { name: "Name", rate: "Rate", size_bytes: "Size", records: "Records" };

export const href = (name, tab = "layers") => `#/topic/${encodeURIComponent(name)}/${tab}`;

export function view(main, { may }) {
  const asked = { search: "", sort: "name", page: 0 };
  const search = h("input", {
    type: "search",
    placeholder: "Search topics",
    "aria-label": "Search topics",
    oninput: () => again({ search: search.value, page: 0 }),
  });
  const order = h(
    "select",
    { "aria-label": "Sort by", onchange: () => again({ sort: order.value, page: 0 }) },
    Object.entries(ORDERS).map(([value, label]) => h("option", { value }, label)),
  );
  const numbers = tiles(["Topics", "Records", "On disk", "Appended"]);
  const list = table({
    label: "Topics",
    key: (row) => row.name,
    empty: "No topics. Create one here, or append to one that you make with lamina topic create.",
    columns: [
      { label: "Topic", head: true, once: true, cell: (row) => h("a", { href: href(row.name) }, row.name) },
      { label: "Format", once: true, cell: (row) => h("span", { class: "chip" }, row.format) },
      { label: "Partitions", num: true, cell: (row) => count(row.partitions) },
      { label: "Segments", num: true, cell: (row) => count(row.segments) },
      { label: "Records", num: true, cell: (row) => count(row.records) },
      { label: "Size", num: true, cell: (row) => bytes(row.size_bytes) },
      { label: "Records/s", num: true, cell: (row) => short(row.rate) },
      { label: "Bytes/s", num: true, cell: (row) => (row.bytes_rate === null ? "–" : bytes(row.bytes_rate)) },
      { label: "Trend", cls: "trend", cell: (row) => sparkline(row.trend, `${row.name}: records per second, the last two minutes`) },
    ],
  });
  const pages = pager((page) => again({ page }));
  const create = h("button", { type: "button", class: "main", onclick: () => createTopic(eyes.now) }, "New topic");
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Topics"), h("span", { class: "grow" }), search, order, may && create),
    numbers.node,
    list.node,
    pages.node,
  );

  const eyes = watch(async (signal) => {
    const found = await feed("topics", asked, signal);
    list.update(found.rows);
    pages.update(found);
    const { topics, records, size_bytes: size, rate } = found.totals;
    numbers.update({ Topics: count(topics), Records: count(records), "On disk": bytes(size), Appended: `${short(rate)}/s` });
  });
  function again(change) {
    Object.assign(asked, change);
    eyes.now();
  }
  return eyes;
}

function createTopic(then) {
  ask({
    title: "New topic",
    button: "Create",
    fields: [
      { name: "topic", label: "Name", required: true },
      { name: "format", label: "Format", options: FORMATS, value: "keratin", hint: "keratin keeps keys and headers; frame is the simplest; wal is for many small topics." },
      { name: "partitions", label: "Partitions", type: "number", value: 1, min: 1 },
      { name: "config", label: "Settings", rows: 3, placeholder: "retention.ms=86400000", hint: "One key=value per line." },
    ],
    run: async ({ topic, format, partitions, config }) => {
      await act("create_topic", { topic, format, partitions: Number(partitions), config: settingsOf(config) });
      then();
      return `Topic ${topic} was created.`;
    },
  });
}
