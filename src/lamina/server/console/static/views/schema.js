// A typed topic: its columns, what each version changed, and records as columns.

import { feed } from "../api.js";
import { h, put } from "../dom.js";
import { count, instant } from "../format.js";
import { scrollable, table } from "../table.js";
import { watch } from "../watch.js";

const SLOW_MS = 10_000;

export function view(main, { topic, partitions }) {
  const about = h("p", { class: "muted" }, "Looking for a schema …");
  const body = h("div", { hidden: true });
  main.append(about, body);
  const fields = table({
    label: "Columns",
    key: (row) => row.name,
    columns: [
      { label: "Column", head: true, cls: "mono", cell: (row) => row.name },
      { label: "Type", cls: "mono", cell: (row) => row.type },
      { label: "Null", cell: (row) => (row.nullable ? "may be null" : "never") },
    ],
  });
  const versions = table({
    label: "Versions",
    key: (row) => row.version,
    columns: [
      { label: "Version", head: true, num: true, cell: (row) => count(row.version) },
      { label: "Id", num: true, cell: (row) => count(row.id) },
      { label: "What it changed", once: true, cell: changes },
      { label: "Text", once: true, cell: (row) => h("details", {}, h("summary", {}, "Show"), text(row)) },
    ],
  });
  const rows = records(topic, partitions);
  body.append(h("h2", {}, "Columns"), fields.node, h("h2", {}, "Versions"), versions.node, h("h2", {}, "Records"), rows.node);

  return watch(async (signal) => {
    const found = await feed("schema", { topic }, signal);
    body.hidden = !found.versions.length;
    if (body.hidden) {
      put(about, `${topic} has no schema: its values are bytes. store.set_schema("${topic}", …) gives it one, and its records are columns from then on.`);
      return;
    }
    const keyed = found.key ? `, key from ${found.key}` : "";
    put(about, `${found.encoding}, ${found.framing} framing${keyed}, compatibility ${found.compatibility}, ${count(found.total)} version${found.total === 1 ? "" : "s"}`);
    fields.update(found.versions[0].fields);
    versions.update(found.versions);
    rows.begin();
  }, SLOW_MS);
}

function text(row) {
  const node = h("pre", {}, row.text);
  scrollable(node, `Text of version ${row.version}`);
  return node;
}

/** What a version added, dropped and changed. */
function changes({ changes: found }) {
  if (!found) return "the first version";
  if (!found.length) return "no column (its text only)";
  const shown = (about) => (about.nullable ? `${about.type}, may be null` : about.type);
  return h("ul", { class: "plain" }, found.map((each) => {
    if (each.kind === "added") return h("li", {}, `added ${each.name}: ${shown(each.to)}`);
    if (each.kind === "dropped") return h("li", {}, `dropped ${each.name}: ${shown(each.from)}`);
    return h("li", {}, `changed ${each.name}: ${shown(each.from)} → ${shown(each.to)}`);
  }));
}

/** A page of records as columns, with a way to older and newer ones. */
function records(topic, partitions) {
  const place = h("div", {});
  const where = h("span", { class: "muted" });
  const pick = h("select", { "aria-label": "Partition", onchange: () => load(null) }, Array.from({ length: partitions }, (_, i) => h("option", { value: i }, `Partition ${i}`)));
  const older = h("button", { type: "button", onclick: () => load(Math.max(at.earliest, at.start - 50)) }, "Older");
  const newer = h("button", { type: "button", onclick: () => load(at.next) }, "Newer");
  const newest = h("button", { type: "button", onclick: () => load(null) }, "Newest");
  const node = h("div", {}, h("div", { class: "bar" }, partitions > 1 && pick, older, newer, newest, where), place);
  let at = null;

  async function load(start) {
    try {
      at = await feed("columns", { topic, partition: pick.value, start });
    } catch (error) {
      put(place, h("p", { class: "empty" }, error.message));
      return;
    }
    older.disabled = at.start <= at.earliest;
    newer.disabled = at.next >= at.end;
    const more = at.hidden ? `, ${count(at.hidden)} more columns are not shown` : "";
    put(where, at.rows.length ? `offsets ${count(at.rows[0].offset)} to ${count(at.next - 1)} under version ${at.version}${more}` : "");
    const list = table({
      label: "Records as columns",
      key: (row) => row.offset,
      empty: "No records here.",
      columns: [
        { label: "Offset", head: true, num: true, cell: (row) => count(row.offset) },
        { label: "Time", cell: (row) => (row.timestamp_ms === null ? "–" : instant(row.timestamp_ms)) },
        ...at.columns.map((name, i) => ({ label: name, cls: "mono", cell: (row) => row.cells[i] ?? (row.error ? "" : "null") })),
        ...(at.rows.some((row) => row.error) ? [{ label: "What is wrong", cell: (row) => row.error ?? "" }] : []),
      ],
    });
    place.replaceChildren(list.node);
    list.update(at.rows);
  }
  return { node, begin: () => at || load(null) };
}
