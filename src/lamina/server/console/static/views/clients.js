// Kafka clients that are connected: what they run, from where, with which key, since when.

import { feed } from "../api.js";
import { h, put } from "../dom.js";
import { count, moment, zoned } from "../format.js";
import { pager, table } from "../table.js";
import { watch } from "../watch.js";

export function view(main, { caller }) {
  const asked = { search: "", page: 0 };
  const search = h("input", {
    type: "search",
    placeholder: "Search clients",
    "aria-label": "Search clients",
    oninput: () => again({ search: search.value, page: 0 }),
  });
  const list = table({
    label: "Kafka clients",
    key: (row) => row.number,
    empty: caller.prefix ? "Who is connected is shown to keys of all topics." : "No Kafka client is connected.",
    columns: [
      { label: "Client", head: true, cell: (row) => row.client_id || "–" },
      { label: "Software", cell: (row) => row.software || "not told" },
      { label: "Version", cell: (row) => row.version || "–" },
      { label: "Host", cls: "mono", cell: (row) => row.host },
      { label: "Key", cls: "mono", cell: (row) => row.key || "none yet" },
      { label: zoned("Connected"), cls: "mono", cell: (row) => moment(row.since_ms) },
    ],
  });
  const told = h("p", { class: "muted" });
  const pages = pager((page) => again({ page }));
  main.append(h("div", { class: "head" }, h("h1", {}, "Kafka clients"), told, h("span", { class: "grow" }), search), list.node, pages.node);
  const eyes = watch(async (signal) => {
    const found = await feed("clients", asked, signal);
    list.update(found.rows.map((row, number) => ({ ...row, number })));
    pages.update(found);
    put(told, `${count(found.total)} connection${found.total === 1 ? "" : "s"}`);
  });
  function again(change) {
    Object.assign(asked, change);
    eyes.now();
  }
  return eyes;
}
