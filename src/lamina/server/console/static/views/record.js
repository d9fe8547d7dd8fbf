// One record: its fields, its value as text, JSON and hex, and its bytes as they lie in the file.

import { feed } from "../api.js";
import { h, put } from "../dom.js";
import { bytes, count, instant } from "../format.js";

const HEX_MAX = 4096;

function decode(sent) {
  return sent ? Uint8Array.from(atob(sent.base64), (c) => c.charCodeAt(0)) : null;
}

function asText(data) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    return null;
  }
}

function asJson(text) {
  if (text === null || !/^\s*[[{"]/.test(text)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

const printable = (byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·");

/** Bytes as rows of sixteen; `parts` says which bytes are whose, as [from, to, class]. */
export function hexDump(data, parts = [], origin = 0) {
  const shown = data.subarray(0, HEX_MAX);
  const whose = (i) => parts.find(([from, to]) => from <= i && i < to)?.[2] ?? "frame";
  const rows = [];
  for (let at = 0; at < shown.length; at += 16) {
    const row = shown.subarray(at, at + 16);
    const runs = [];
    row.forEach((byte, i) => {
      const kind = parts.length ? whose(at + i) : "value";
      if (runs.at(-1)?.kind !== kind) runs.push({ kind, hex: "", text: "" });
      runs.at(-1).hex += `${byte.toString(16).padStart(2, "0")}${i === 7 ? "  " : " "}`;
      runs.at(-1).text += printable(byte);
    });
    const fill = " ".repeat(Math.max(0, 50 - runs.reduce((n, r) => n + r.hex.length, 0)));
    rows.push(
      h("span", { class: "at" }, (origin + at).toString(16).padStart(8, "0")), "  ",
      runs.map((r) => h("span", { class: r.kind }, r.hex)), fill, " ",
      runs.map((r) => h("span", { class: r.kind }, r.text)), "\n",
    );
  }
  if (data.length > HEX_MAX) rows.push(`… ${count(data.length - HEX_MAX)} more bytes`);
  return h("pre", { class: "hexdump", tabindex: "0" }, rows);
}

function find(data, part) {
  if (!part?.length) return -1;
  outer: for (let i = 0; i + part.length <= data.length; i += 1) {
    for (let j = 0; j < part.length; j += 1) if (data[i + j] !== part[j]) continue outer;
    return i;
  }
  return -1;
}

function owners(raw, key, value) {
  const parts = [];
  for (const [data, kind] of [[value, "value"], [key, "key"]]) {
    const at = find(raw, data);
    if (at >= 0) parts.push([at, at + data.length, kind]);
  }
  return parts.length ? parts : [[0, 0, "value"]];
}

function short(data) {
  if (data === null) return "null";
  return asText(data) ?? `0x${[...data.subarray(0, 64)].map((b) => b.toString(16).padStart(2, "0")).join("")}`;
}

/** Shows the record at an offset. */
export function record(place, { topic, partition, offset, go, shown }) {
  const waiting = h("p", { class: "muted" }, "Reading…");
  place.replaceChildren(waiting);
  feed("record", { topic, partition, offset })
    .then((found) => {
      if (!waiting.isConnected) return; // somebody went on in the meantime
      show(place, found, offset, go);
      shown();
    })
    .catch((error) => waiting.isConnected && place.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message)));
  return {};
}

function show(place, found, offset, go) {
  if (!found.record) {
    const { first, end, reason } = found.gap;
    place.replaceChildren(
      h("p", { class: "problem", role: "alert" }, `Offsets ${count(first)} to ${count(end - 1)} are missing: ${reason}.`),
      h("button", { type: "button", onclick: () => go(end) }, `Go on at ${count(end)}`),
    );
    return;
  }
  const { record: it, raw, layer } = found;
  const [key, value] = [decode(it.key), decode(it.value)];
  const text = value && asText(value);
  const json = asJson(text);
  const panes = {};
  if (json !== null) panes.JSON = () => h("pre", { class: "value", tabindex: "0" }, json);
  if (text !== null && value) panes.Text = () => h("pre", { class: "value", tabindex: "0" }, text);
  if (value) panes.Hex = () => hexDump(value);
  if (raw) panes["On disk"] = () => onDisk(raw, key, value);
  const pane = h("div", { class: "pane", role: "tabpanel" });
  const tabs = Object.keys(panes).map((name) =>
    h("button", { type: "button", role: "tab", onclick: () => choose(name) }, name),
  );
  function choose(name) {
    tabs.forEach((tab) => tab.setAttribute("aria-selected", String(tab.textContent === name)));
    put(pane, [panes[name]()]);
  }
  const move = (to, label, off) => h("button", { type: "button", disabled: off, onclick: () => go(to) }, label);
  place.replaceChildren(
    h("div", { class: "bar" }, h("h2", {}, `Record ${count(it.offset)}`), h("span", { class: "grow" }),
      move(it.offset - 1, "← Older", it.offset <= found.earliest), move(it.offset + 1, "Newer →", it.offset + 1 >= found.durable)),
    facts(it, layer, key),
    h("div", { class: "tabs small", role: "tablist", "aria-label": "The value as" }, tabs),
    pane,
  );
  if (it.offset !== offset) pane.before(h("p", { class: "muted" }, `Offset ${count(offset)} was deleted; this is the next record.`));
  if (tabs.length) choose(Object.keys(panes)[0]);
  else put(pane, "The value is null: a tombstone.");
}

function facts(it, layer, key) {
  const rows = [
    ["Time", instant(it.timestamp_ms)],
    ["Key", it.key === undefined ? null : short(key)],
    ["Tag", it.tag === undefined ? null : short(decode(it.tag))],
    ["Node", it.node === undefined ? null : short(decode(it.node))],
    ["Value", it.value ? `${bytes(it.value.size)}${it.value.cut ? ", the first 64 KiB are shown" : ""}` : "null"],
    ["Lies in", layer && `${layer.state} ${layer.where}${layer.compression ? `, ${layer.compression}` : ""}`],
    ...(it.headers ?? []).map((each) => [`Header ${each.key}`, short(decode(each.value))]),
  ].filter(([, text]) => text !== null);
  return h("dl", { class: "facts" }, rows.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
}

function onDisk(raw, key, value) {
  const data = decode(raw);
  return h("div", {},
    h("p", { class: "muted" }, h("code", {}, raw.path), `, byte ${count(raw.position)}, ${bytes(raw.size)}: `,
      h("span", { class: "frame" }, "frame"), " · ", h("span", { class: "key" }, "key"), " · ", h("span", { class: "value" }, "value")),
    hexDump(data, owners(data, key, value), raw.position));
}
