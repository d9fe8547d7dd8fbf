// The writer: how appends are gathered into groups, how long an fsync takes, what waits.

import { feed } from "../api.js";
import { chart } from "../chart.js";
import { h } from "../dom.js";
import { bytes, count, micros, short } from "../format.js";
import { pager, table } from "../table.js";
import { watch } from "../watch.js";
import { asked as span, windowPicker } from "../windows.js";

export function view(main) {
  const asked = { search: "", page: 0 };
  const search = h("input", {
    type: "search",
    placeholder: "Search writers",
    "aria-label": "Search writers",
    oninput: () => again({ search: search.value, page: 0 }),
  });
  const whole = (n) => (n === null ? "–" : short(n));
  const fsync = chart({ title: "fsync", lines: [{ label: "p99", colour: "--sealed" }, { label: "p50", colour: "--cold" }], kind: "micros" });
  const sizes = chart({ title: "Requests in a group commit", lines: [{ label: "p99", colour: "--sealed" }, { label: "p50", colour: "--cold" }], kind: "count" });
  const queue = chart({ title: "Requests waiting", lines: [{ label: "queued", colour: "--accent" }], kind: "count" });
  const mark = chart({ title: "Written, not yet durable", lines: [{ label: "records", colour: "--active" }], kind: "count" });
  const list = table({
    label: "Writers",
    key: (row) => row.name,
    columns: [
      { label: "Writer", head: true, once: true, cell: (row) => row.name },
      { label: "Groups/s", num: true, cell: (row) => short(row.groups ?? 0) },
      { label: "Records/s", num: true, cell: (row) => short(row.records ?? 0) },
      { label: "Bytes/s", num: true, cell: (row) => bytes(row.bytes ?? 0) },
      { label: "Group p50 / p99", num: true, cell: (row) => `${whole(row.group_p50 ?? null)} / ${whole(row.group_p99 ?? null)}` },
      { label: "fsync p50", num: true, cell: (row) => micros(row.fsync_p50_us) },
      { label: "fsync p99", num: true, cell: (row) => micros(row.fsync_p99_us) },
      { label: "Queued", num: true, cell: (row) => count(row.depth) },
      { label: "Durable up to", num: true, cell: (row) => count(row.durable) },
      { label: "Behind", num: true, cell: (row) => count(row.unsynced) },
      { label: "State", cell: (row) => (row.failure ? h("span", { class: "problem" }, row.failure) : "writes") },
    ],
  });
  const pages = pager((page) => again({ page }));
  const charts = [fsync, sizes, queue, mark];
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Writer"), h("p", { class: "muted" }, "many requests, one write, one fsync"), h("span", { class: "grow" }), search),
    windowPicker(() => eyes.now()),
    h("div", { class: "charts two" }, charts.map((each) => each.node)),
    list.node,
    pages.node,
  );
  const eyes = watch(async (signal) => {
    const found = await feed("writers", { ...asked, ...span() }, signal);
    const s = found.series;
    fsync.set(s.times, s.fsync_p99_us, s.fsync_p50_us);
    sizes.set(s.times, s.group_p99, s.group_p50);
    queue.set(s.times, s.depth);
    mark.set(s.times, s.unsynced);
    list.update(found.rows);
    pages.update(found);
  });
  function again(change) {
    Object.assign(asked, change);
    eyes.now();
  }
  return {
    stop() {
      eyes.stop();
      charts.forEach((each) => each.stop());
    },
  };
}
