// The broker: what runs here, on which disk, how it started, and every setting with its meaning.

import { feed } from "../api.js";
import { h, prose, put } from "../dom.js";
import { bytes, count, instant, seconds, setting } from "../format.js";
import { missing } from "../missing.js";
import { table, tiles } from "../table.js";
import { watch } from "../watch.js";

/** A table of settings; what is not at its default is marked. */
export function settingTable(label, more = []) {
  return table({
    label,
    key: (row) => row.key,
    columns: [
      { label: "Setting", head: true, cls: "mono", cell: (row) => row.key },
      { label: "Value", cell: (row) => h("span", { class: row.changed ? "chip good" : null }, setting(row.key, row.value)) },
      ...more,
      { label: "Unit", cell: (row) => row.unit },
      { label: "What it does", cls: "long", once: true, cell: (row) => prose(row.consequence) },
    ],
  });
}

export function view(main) {
  const numbers = tiles(["Version", "Up for", "Disk free", "Logs on disk"]);
  const facts = h("dl", { class: "facts" });
  const started = h("p", { class: "muted" });
  const settings = settingTable("Settings of the server");
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Broker")),
    numbers.node, facts,
    h("h2", {}, "The last start"), started,
    h("h2", {}, "Settings"), settings.node,
  );
  const eyes = watch(async (signal) => {
    const found = await feed("broker", {}, signal);
    const { disk, recovery } = found;
    numbers.update({
      Version: found.version,
      "Up for": seconds((found.now_ms - found.started_ms) / 1000),
      "Disk free": bytes(disk.free_bytes),
      "Logs on disk": bytes(disk.log_bytes),
    });
    const rows = [
      ["Health", found.health.status === "ok" ? "ok" : found.health.problems.join("; ")],
      ["Serving since", instant(found.started_ms)],
      ["Data directory", `${found.data}, on a disk of ${bytes(disk.total_bytes)}`],
      ["Python", found.python],
      ["Machine", found.machine],
      ["Process", String(found.process)],
    ];
    put(facts, rows.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
    const did = recovery.kinds.map(({ kind, events }) => `${kind}: ${count(events)}`).join(", ") || "nothing had to be repaired";
    put(started, [`Recovery took ${recovery.milliseconds.toFixed(1)} ms; ${did}. `, h("a", { href: "#/reports" }, "The whole report")]);
    settings.update(found.settings);
  }, 5000, (error) => missing(main, { title: "The broker is not for your key", text: error.message }));
  return eyes;
}
