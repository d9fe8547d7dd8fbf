// The partitions of a topic as a table: where each begins and ends, and what it holds.

import { feed } from "../api.js";
import { h } from "../dom.js";
import { bytes, count } from "../format.js";
import { table } from "../table.js";
import { watch } from "../watch.js";
import { href } from "./topics.js";

export function view(main, { topic }) {
  const list = table({
    label: "Partitions",
    key: (row) => row.partition,
    columns: [
      { label: "Partition", head: true, num: true, once: true, cell: (row) => h("a", { href: `${href(topic)}?p=${row.partition}` }, count(row.partition)) },
      { label: "Earliest", num: true, cell: (row) => count(row.earliest_offset) },
      { label: "Durable up to", num: true, cell: (row) => count(row.durable_offset) },
      { label: "Written up to", num: true, cell: (row) => count(row.written_offset) },
      { label: "Records", num: true, cell: (row) => count(row.durable_offset - row.earliest_offset) },
      { label: "Segments", num: true, cell: (row) => count(row.segments) },
      { label: "On disk", num: true, cell: (row) => bytes(row.size_bytes) },
      { label: "Only archived", num: true, cell: (row) => (row.archived_segments ? `${count(row.archived_segments)} · ${bytes(row.archived_bytes)}` : "–") },
    ],
  });
  main.append(list.node);
  return watch(async (signal) => list.update((await feed("topic", { topic }, signal)).partitions));
}
