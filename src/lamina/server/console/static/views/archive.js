// The archive: what is in the object store, and how far it is behind.

import { act, feed } from "../api.js";
import { chart } from "../chart.js";
import { ask } from "../dialog.js";
import { h, put } from "../dom.js";
import { bytes, count, seconds } from "../format.js";
import { pager, table, tiles } from "../table.js";
import { watch } from "../watch.js";
import { asked as span, windowPicker } from "../windows.js";
import { href } from "./topics.js";

export function view(main, { may }) {
  const asked = { page: 0 };
  const numbers = tiles(["Objects", "Archived", "Records behind", "Sealed bytes behind"]);
  const behind = chart({ title: "Not archived yet", lines: [{ label: "records", colour: "--cold" }], kind: "count" });
  const volume = chart({ title: "Sealed, not archived yet", lines: [{ label: "bytes", colour: "--sealed" }], kind: "bytes" });
  const list = table({
    label: "Archived partitions",
    key: (row) => `${row.topic}/${row.partition}`,
    empty: "No topic is archived: set remote.storage.enable on one.",
    columns: [
      { label: "Topic", head: true, once: true, cell: (row) => h("a", { href: href(row.topic) }, row.topic) },
      { label: "Partition", num: true, cell: (row) => count(row.partition) },
      { label: "Archived up to", num: true, cell: (row) => count(row.archived_offset) },
      { label: "Objects", num: true, cell: (row) => count(row.objects) },
      { label: "Size", num: true, cell: (row) => bytes(row.size_bytes) },
      { label: "Records behind", num: true, cell: (row) => count(row.records_behind) },
      { label: "Sealed behind", num: true, cell: (row) => bytes(row.bytes_behind) },
      { label: "Waiting for", num: true, cell: (row) => seconds(row.seconds_behind) },
      { label: "Last error", cell: (row) => (row.last_error ? h("span", { class: "problem" }, row.last_error) : "none") },
    ],
  });
  const pages = pager((page) => {
    asked.page = page;
    eyes.now();
  });
  const where = h("p", { class: "muted" });
  const now = h("button", { type: "button", class: "main", onclick: archiveNow }, "Archive now");
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Archive"), where, h("span", { class: "grow" }), may && now),
    numbers.node,
    windowPicker(() => eyes.now()),
    h("div", { class: "charts two" }, behind.node, volume.node),
    list.node,
    pages.node,
  );
  const eyes = watch(async (signal) => {
    const found = await feed("tier", { ...asked, ...span() }, signal);
    now.disabled = found.url === null;
    put(where, found.url ?? "This server has no archive; start it with --set archive=…");
    numbers.update({
      Objects: count(found.totals.objects),
      Archived: bytes(found.totals.size_bytes),
      "Records behind": count(found.totals.records_behind),
      "Sealed bytes behind": bytes(found.totals.bytes_behind),
    });
    behind.set(found.series.times, found.series.records);
    volume.set(found.series.times, found.series.bytes);
    list.update(found.rows);
    pages.update(found);
  });
  return {
    stop() {
      eyes.stop();
      behind.stop();
      volume.stop();
    },
  };
}

function archiveNow() {
  ask({
    title: "Archive now",
    text: "Uploads every sealed segment of every archived topic, also where objects stay small. Reads and appends go on.",
    button: "Archive",
    run: async () => {
      await act("archive");
      location.hash = "#/jobs";
      return "Archiving.";
    },
  });
}
