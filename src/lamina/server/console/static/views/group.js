// One group: its lag over time, each partition, its members, and moving it.

import { act, feed } from "../api.js";
import { chart } from "../chart.js";
import { ask } from "../dialog.js";
import { h, put } from "../dom.js";
import { bytes, count, counted, parseOffset, parseTime, seconds } from "../format.js";
import { missing } from "../missing.js";
import { table } from "../table.js";
import { EVERY_MS, watch } from "../watch.js";
import { asked, windowPicker } from "../windows.js";
import { memberTable } from "./members.js";
import { href } from "./topics.js";

export function view(main, { parts, may }) {
  const [topic, group] = parts;
  const records = chart({ title: "Lag in records", lines: [{ label: "records", colour: "--sealed" }], kind: "count" });
  const time = chart({ title: "Lag in time", lines: [{ label: "behind", colour: "--cold" }], kind: "seconds" });
  const list = table({
    label: "Partitions",
    key: (row) => row.partition,
    columns: [
      { label: "Partition", head: true, num: true, cell: (row) => count(row.partition) },
      { label: "Acked up to", num: true, cell: (row) => count(row.committed) },
      { label: "End", num: true, cell: (row) => count(row.end) },
      { label: "Lag, records", num: true, cell: (row) => count(row.records) },
      { label: "Lag, time", num: true, cell: (row) => seconds(row.seconds) },
      { label: "Lag, bytes", num: true, cell: (row) => bytes(row.bytes) },
      { label: "In flight", num: true, cell: (row) => count(row.inflight) },
      { label: "Acked ahead", num: true, cell: (row) => count(row.acked_ahead) },
      { label: "Progress", cell: (row) => h("progress", { max: Math.max(1, row.end), value: row.committed, "aria-label": `${count(row.committed)} of ${count(row.end)}` }) },
    ],
  });
  const members = memberTable({ grouped: false, empty: "Nobody is a member of this group." });
  const told = h("p", { class: "muted" });
  const seek = h("button", { type: "button", onclick: () => move(topic, group, () => eyes.now()) }, "Seek…");
  main.append(
    h("div", { class: "head" }, h("h1", {}, group), told, h("span", { class: "grow" }), may && seek),
    windowPicker(() => eyes.now()),
    h("div", { class: "charts two" }, records.node, time.node),
    list.node,
    h("h2", {}, "Members"),
    members.node,
  );
  const eyes = watch(async (signal) => {
    const found = await feed("group", { topic, group, ...asked() }, signal);
    list.update(found.partitions);
    members.update(found.members);
    records.set(found.series.times, found.series.records);
    time.set(found.series.times, found.series.seconds);
    const lag = found.partitions.reduce((sum, part) => sum + part.records, 0);
    put(told, ["reads ", h("a", { href: href(topic) }, topic), ` · ${counted(lag, "record")} behind`]);
  }, EVERY_MS, (error) => {
    stop();
    missing(main, { title: `There is no group ${group ?? ""}`, text: error.message, links: [["#/groups", "All groups"], ["#/topics", "All topics"]] });
  });
  function stop() {
    eyes.stop();
    records.stop();
    time.stop();
  }
  return { stop };
}

function target(to) {
  const given = to.trim();
  if (given === "earliest" || given === "latest") return { to: given };
  const offset = /^\d{13}$/.test(given) ? null : parseOffset(given); // thirteen digits are a time
  if (offset !== null) return { to: offset };
  const ms = parseTime(given);
  if (ms === null) throw new Error("say where to: earliest, latest, an offset or a time");
  return { time_ms: Math.round(ms) };
}

function move(topic, group, then) {
  ask({
    title: `Seek ${group}`,
    text: "Moves the group in every partition. Leases and counts of deliveries are forgotten.",
    fields: [{ name: "to", label: "To", value: "latest", hint: "earliest, latest, an offset, or a time such as -15m or 2026-01-31 12:00:00" }],
    button: "Seek",
    danger: true,
    confirm: group,
    plan: async ({ to }) => {
      const { moves } = await act("seek_group", { topic, group, ...target(to) });
      return moves.map((m) => `partition ${m.partition}: ${count(m.before)} → ${count(m.after)}`).join("; ");
    },
    run: async ({ to }) => {
      await act("seek_group", { topic, group, ...target(to), execute: true });
      then();
      return `${group} was moved.`;
    },
  });
}
