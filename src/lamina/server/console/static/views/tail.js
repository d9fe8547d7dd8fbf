// The live tail: what is appended, newest on top; chosen by the server, paused by the space bar.

import { query } from "../api.js";
import { h, note, put } from "../dom.js";
import { count, parseOffset, parseTime, recent, zoned } from "../format.js";
import { scrollable } from "../table.js";
import { exportSearch } from "./exporting.js";
import { beginning } from "./recordlist.js";

const ROWS_MAX = 300;

export function view(main, { topic, partitions, format, options }) {
  const field = (name, label, about = {}) => {
    const id = `tail-${name}`;
    return [name, label, h("input", { id, autocomplete: "off", spellcheck: "false", size: 10, ...about })];
  };
  const fields = [
    format === "wal" ? field("tag", "Tag has") : field("key", "Key has"),
    field("text", "Value has"),
    field("since", "Since", { placeholder: "-15m", size: 9 }),
    field("until", "Until", { placeholder: "time", size: 9 }),
    field("start", "From offset", { inputmode: "numeric", size: 7 }),
  ];
  const inputs = Object.fromEntries(fields.map(([name, , input]) => [name, input]));
  const part = h("select", { "aria-label": "Partition" }, h("option", { value: "" }, "all partitions"),
    Array.from({ length: partitions }, (_, n) => h("option", { value: n, selected: options.get("p") === String(n) }, `partition ${n}`)));
  const pause = h("button", { type: "button", class: "main", onclick: toggle, "aria-keyshortcuts": "Space" }, "Pause");
  const save = h("button", { type: "button", onclick: () => exportSearch(topic, asked) }, "Export…");
  const clear = h("button", { type: "button", onclick: () => body.replaceChildren() }, "Clear");
  const status = h("p", { class: "muted", role: "status" }, "Connecting…");
  const body = h("tbody", { id: "tail-rows" });
  const form = h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); restart(); } },
    part, fields.map(([, label, input]) => h("span", { class: "field" }, h("label", { for: input.id }, label), input)),
    h("button", { type: "submit" }, "Apply"), h("span", { class: "grow" }), save, clear, pause);
  const heads = ["Offset", zoned("Time"), format === "wal" ? "Tag" : "Key", "Value"];
  const list = h("div", { class: "table tail" },
    h("table", { "aria-label": "Newest records first" }, h("thead", {}, h("tr", {}, heads.map((each, i) => h("th", { scope: "col", class: i === 0 ? "num" : null }, each)))), body));
  main.append(form, status, list);
  scrollable(list, "Newest records");

  let source = null;
  let reached = null;
  const seen = { looked: 0, matched: 0, unshown: 0 };

  function asked() {
    const given = { topic, partition: part.value, text: inputs.text.value };
    if (inputs.start.value.trim()) {
      given.start = parseOffset(inputs.start.value);
      if (given.start === null) throw new Error("an offset is a whole number: 1234567 or 1,234,567");
    }
    if (inputs.key) given.key = inputs.key.value;
    if (inputs.tag) given.tag = inputs.tag.value;
    const [since, until] = [parseTime(inputs.since.value), parseTime(inputs.until.value)];
    if (since !== null) given.since_ms = Math.round(since);
    if (until !== null) given.until_ms = Math.round(until);
    return given;
  }

  function restart() {
    body.replaceChildren();
    Object.assign(seen, { looked: 0, matched: 0, unshown: 0 });
    reached = null;
    open();
  }

  function open() {
    let given;
    try {
      given = asked();
    } catch (error) {
      note(error.message, "bad");
      return;
    }
    given.next = reached;
    source?.close();
    source = new EventSource(`/console/tail?${query(given)}`);
    source.addEventListener("message", (event) => take(JSON.parse(event.data)));
    source.addEventListener("refused", (event) => refused(JSON.parse(event.data).message));
    source.addEventListener("error", () => source?.readyState === EventSource.CLOSED && refused("The server refused the tail: is the topic there, are the filters right?"));
    put(pause, "Pause");
    pause.setAttribute("aria-pressed", "false");
  }

  function refused(text) {
    halt();
    note(text, "bad");
    put(status, text);
  }

  function take(told) {
    reached = told.next;
    for (const name of Object.keys(seen)) seen[name] += told[name];
    const rows = told.rows.map((row) =>
      h("tr", {},
        h("th", { scope: "row", class: "num" }, h("a", { href: `#/topic/${encodeURIComponent(topic)}/layers?p=${row.partition}&offset=${row.offset}` }, partitions > 1 ? `${row.partition}:${count(row.offset)}` : count(row.offset))),
        h("td", { class: "mono" }, recent(row.timestamp_ms)),
        h("td", { class: "mono cut" }, beginning(row.key ?? row.tag)),
        h("td", { class: "mono cut wide" }, beginning(row.value))));
    body.prepend(...rows.reverse());
    while (body.childElementCount > ROWS_MAX) body.lastElementChild.remove();
    const behind = told.behind ? ` · ${count(told.behind)} to go` : "";
    put(status, `Live · ${count(seen.looked)} looked at · ${count(seen.matched)} matched${seen.unshown ? ` · ${count(seen.unshown)} came too fast to show` : ""}${behind}`);
  }

  function halt() {
    source?.close();
    source = null;
    put(pause, "Resume");
    pause.setAttribute("aria-pressed", "true");
  }
  function toggle() {
    if (source) {
      halt();
      put(status, "Paused");
    } else open();
  }
  const keys = (event) => {
    if (event.key !== " " || event.target.matches("input, select, textarea, button, a")) return;
    event.preventDefault();
    toggle();
  };
  document.addEventListener("keydown", keys);
  restart();
  return {
    stop() {
      document.removeEventListener("keydown", keys);
      source?.close();
    },
  };
}
