// Spark queries: those that read, with their lag, and those that write, with their transactions.

import { feed } from "../api.js";
import { h } from "../dom.js";
import { count, moment, zoned } from "../format.js";
import { pager, table } from "../table.js";
import { watch } from "../watch.js";
import { COLUMNS } from "./groups.js";

export function view(main) {
  const asked = { page: 0 };
  const readers = table({
    label: "Queries that read",
    key: (row) => `${row.topic}/${row.group}`,
    columns: [{ ...COLUMNS[0], label: "Query" }, ...COLUMNS.slice(1)],
    empty: "No streaming query has published a position: give it the option groupId.",
  });
  const writers = table({
    label: "Queries that write",
    key: (row) => row.application,
    empty: "No query has written through the sink.",
    columns: [
      { label: "Application", head: true, cell: (row) => row.application },
      { label: "Query", cls: "mono", cell: (row) => row.query || "batch" },
      { label: "Last transaction", num: true, cell: (row) => count(row.number) },
      { label: zoned("Stored"), cls: "mono", cell: (row) => moment(row.stored_ms) },
    ],
  });
  const pages = pager((page) => {
    asked.page = page;
    eyes.now();
  });
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Spark"), h("p", { class: "muted" }, "queries that read or write this log")),
    h("h2", {}, "Reading"), readers.node, pages.node,
    h("h2", {}, "Writing"), writers.node,
  );
  const eyes = watch(async (signal) => {
    const found = await feed("queries", asked, signal);
    readers.update(found.readers);
    writers.update(found.writers);
    pages.update(found);
  });
  return eyes;
}
