// Jobs: verifying and archiving, with their progress.

import { act, feed } from "../api.js";
import { h, note } from "../dom.js";
import { bytes, count, counted, recent, seconds, zoned } from "../format.js";
import { table } from "../table.js";
import { watch } from "../watch.js";

export function view(main, { may }) {
  const stop = (row) => act("cancel", { job: row.number }).then(() => eyes.now(), (error) => note(error.message, "bad"));
  const list = table({
    label: "Jobs",
    key: (row) => row.number,
    empty: "No job has run since the server started. Verify a topic from its page, or archive now.",
    columns: [
      { label: "Job", head: true, num: true, once: true, cell: (row) => count(row.number) },
      { label: "What", once: true, cls: "line", cell: (row) => (row.topic ? `${row.kind} ${row.topic}` : row.kind) },
      { label: "State", cell: (row) => h("span", { class: `chip ${{ done: row.findings.length ? "bad" : "good", failed: "bad" }[row.state] ?? ""}` }, row.state) },
      { label: "Progress", cell: (row) => h("progress", { max: Math.max(1, row.total), value: row.state === "done" ? Math.max(1, row.total) : row.done, "aria-label": `${count(row.done)} of ${counted(row.total, "record")}` }) },
      { label: "Records", num: true, cell: (row) => `${count(row.done)} of ${count(row.total)}` },
      { label: "Read", num: true, cell: (row) => (row.size_bytes ? bytes(row.size_bytes) : "–") },
      { label: zoned("Began"), cls: "mono", cell: (row) => recent(row.started_ms) },
      { label: "Took", num: true, cell: (row) => (row.ended_ms === null ? "–" : seconds((row.ended_ms - row.started_ms) / 1000)) },
      { label: "Found", cls: "line", cell: (row) => row.problem || (row.findings.length ? h("ul", {}, row.findings.slice(0, 10).map((each) => h("li", { class: "problem" }, each))) : row.state === "done" ? "nothing wrong" : "") },
      { label: "End it", cell: (row) => (may && row.state === "running" ? h("button", { type: "button", onclick: () => stop(row) }, "Stop") : "") },
    ],
  });
  main.append(h("div", { class: "head" }, h("h1", {}, "Jobs")), list.node);
  const eyes = watch(async (signal) => list.update((await feed("jobs", {}, signal)).rows), 700);
  return eyes;
}
