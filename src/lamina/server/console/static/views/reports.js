// Reports: what the last recovery did, which offsets are missing and why, what has failed.

import { feed } from "../api.js";
import { h, put } from "../dom.js";
import { count, moment, zoned } from "../format.js";
import { table } from "../table.js";
import { watch } from "../watch.js";
import { href } from "./topics.js";

const REASONS = {
  retention: "removed by age or size",
  trim: "removed because somebody asked",
  deleted: "removed record by record",
  truncated: "a torn tail that was never durable",
  archived: "moved to the archive, and read from there",
  lost: "durable once, now damaged or gone",
};

export function view(main) {
  const recovered = h("p", { class: "muted" });
  const events = table({
    label: "What recovery did",
    key: (row) => `${row.kind} ${row.path} ${row.first_byte}`,
    empty: "The last start had nothing to repair.",
    columns: [
      { label: "What", head: true, cell: (row) => h("span", { class: `chip ${row.kind === "quarantined" || row.kind === "gap" ? "bad" : ""}` }, row.kind) },
      { label: "File", cls: "mono cut", cell: (row) => row.path },
      { label: "Bytes", num: true, cell: (row) => (row.first_byte === null ? "–" : `${count(row.first_byte)} … ${count(row.end_byte)}`) },
      { label: "Why", cell: (row) => row.why },
      { label: "Kept in", cls: "mono cut", cell: (row) => row.kept_in ?? "–" },
    ],
  });
  const gaps = table({
    label: "Missing offsets",
    key: (row) => `${row.topic}/${row.partition}/${row.first}`,
    empty: "Every offset that ever was can be read.",
    columns: [
      { label: "Topic", head: true, cell: (row) => h("a", { href: `${href(row.topic)}?p=${row.partition}` }, `${row.topic}-${row.partition}`) },
      { label: "First", num: true, cell: (row) => count(row.first) },
      { label: "Last", num: true, cell: (row) => count(row.end - 1) },
      { label: "Records", num: true, cell: (row) => count(row.end - row.first) },
      { label: "Reason", cell: (row) => h("span", { class: `chip ${row.reason === "lost" ? "bad" : ""}`, title: REASONS[row.reason] }, row.reason) },
      { label: zoned("Since"), cls: "mono", cell: (row) => (row.at_ms ? moment(row.at_ms) : "–") },
      { label: "Detail", cell: (row) => row.detail || REASONS[row.reason] || "" },
    ],
  });
  const failures = table({
    label: "Failed partitions",
    key: (row) => row.name,
    empty: "Every partition takes appends.",
    columns: [
      { label: "Partition", head: true, cell: (row) => row.name },
      { label: "Why", cell: (row) => row.why },
    ],
  });
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Reports")),
    h("h2", {}, "Recovery"), recovered, events.node,
    h("h2", {}, "Gaps"), gaps.node,
    h("h2", {}, "Failures"), failures.node,
  );
  return watch(async (signal) => {
    const found = await feed("reports", {}, signal);
    const { milliseconds, total } = found.recovery;
    put(recovered, `The last start took ${milliseconds.toFixed(1)} ms and reported ${count(total)} event${total === 1 ? "" : "s"}.`);
    events.update(found.recovery.events);
    gaps.update(found.gaps);
    failures.update(found.failures);
  }, 5000);
}
