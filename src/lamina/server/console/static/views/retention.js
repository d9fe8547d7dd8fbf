// Retention explained: for each segment, oldest first, why it stays or goes.

import { feed } from "../api.js";
import { h, put } from "../dom.js";
import { bytes, count, counted, moment, seconds, setting, zoned } from "../format.js";
import { table } from "../table.js";
import { watch } from "../watch.js";

export function view(main, { topic, partitions }) {
  const choose = h("select", { "aria-label": "Partition", onchange: () => eyes.now() },
    Array.from({ length: partitions }, (_, n) => h("option", { value: n }, `partition ${n}`)));
  const told = h("p", { class: "muted" });
  let now = Date.now();
  const list = table({
    label: "Segments and what becomes of them",
    key: (row) => row.segment.base_offset,
    columns: [
      { label: "Segment", head: true, num: true, cell: (row) => `${count(row.segment.base_offset)} … ${count(row.segment.next_offset - 1)}` },
      { label: "Size", num: true, cell: (row) => bytes(row.segment.size_bytes) },
      { label: zoned("Newest record"), cls: "mono", cell: (row) => moment(row.segment.newest_timestamp_ms) },
      { label: "Age", num: true, cell: (row) => (row.segment.newest_timestamp_ms === null ? "–" : seconds(Math.max(0, now - row.segment.newest_timestamp_ms) / 1000)) },
      { label: "Decision", cell: (row) => h("span", { class: `chip ${row.goes ? "bad" : "good"}` }, row.goes ? "goes" : "stays") },
      { label: "Why", cell: (row) => row.why },
    ],
  });
  main.append(h("div", { class: "bar" }, choose, told), list.node);
  const eyes = watch(async (signal) => {
    const found = await feed("retention", { topic, partition: choose.value }, signal);
    now = found.now_ms;
    const rules = ["retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes"];
    const set = rules.map((key) => `${key} ${setting(key, found.settings[key])}`).join(" · ");
    put(told, `${count(found.going)} of ${counted(found.total, "segment")} go · ${set}`);
    list.update(found.rows);
  });
  return eyes;
}
