// Bands of sediment: one for each layer or block, as thick as it is long, and the core beside them.

import { h, put } from "../dom.js";
import { bytes, count, counted, span } from "../format.js";

const WORDS = { cold: "cold", sealed: "sealed", active: "active", gone: "gone" };
const [LEAST_PX, MOST_PX, WHOLE_PX] = [30, 92, 620];

/** Thin laminae inside a band: never the same twice, always the same for one offset. */
function grain(base) {
  const mixed = Math.imul(base ^ (base >>> 7), 2654435761) >>> 0;
  return { "--gap": `${4 + (mixed % 6)}px`, "--tilt": `${((mixed >>> 8) % 5) - 2}deg`, "--shade": `${(mixed >>> 16) % 13}%` };
}

function described(band) {
  const records = counted(band.next_offset - band.base_offset, "record");
  const packed = band.compression ? `, ${band.compression === "none" ? "uncompressed" : band.compression}` : "";
  const many = band.joined > 1 && !band.block ? `${count(band.joined)} segments, ` : "";
  return { records, packed, many };
}

/** A list of bands that a person walks through with the arrow keys and enters with Enter. */
export function bands(place, label, open) {
  const list = h("ol", { class: "bands", "aria-label": label });
  place.replaceChildren(list);
  const known = new Map();

  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const all = [...list.querySelectorAll("button")];
    all[all.indexOf(document.activeElement) + step]?.focus();
    event.preventDefault();
  });

  function make() {
    const parts = {
      rock: h("span", { class: "rock", "aria-hidden": "true" }),
      offsets: h("span", { class: "offsets" }),
      state: h("span", { class: "state" }),
      size: h("span", { class: "size" }),
      times: h("span", { class: "times" }),
    };
    const line = { band: null, parts };
    line.button = h("button", { type: "button", class: "band", onclick: () => line.band.state !== "gone" && open(line.band) }, Object.values(parts));
    line.node = h("li", {}, line.button);
    return line;
  }

  function update(given) {
    const rows = [...given].reverse();
    const total = rows.reduce((sum, b) => sum + (b.next_offset - b.base_offset), 0) || 1;
    const ids = new Set(rows.map((b) => b.base_offset));
    for (const [id, line] of known) {
      if (!ids.has(id)) {
        line.node.remove();
        known.delete(id);
      }
    }
    rows.forEach((band, i) => {
      let line = known.get(band.base_offset);
      if (!line) {
        line = make();
        known.set(band.base_offset, line);
      }
      if (list.children[i] !== line.node) list.insertBefore(line.node, list.children[i] ?? null);
      draw(line, band, total);
    });
    place.classList.toggle("none", rows.length === 0);
  }

  function draw(line, band, total) {
    line.band = band;
    const { button, parts } = line;
    const share = (band.next_offset - band.base_offset) / total;
    const { records, packed, many } = described(band);
    const word = band.state === "gone" ? `gone: ${band.where}` : WORDS[band.state];
    button.dataset.state = band.state;
    button.dataset.archived = String(band.archived ?? false);
    button.style.setProperty("--high", `${Math.round(Math.min(MOST_PX, Math.max(LEAST_PX, share * WHOLE_PX)))}px`);
    for (const [name, value] of Object.entries(grain(band.base_offset))) button.style.setProperty(name, value);
    put(parts.offsets, band.next_offset > band.base_offset ? `${count(band.base_offset)} … ${count(band.next_offset - 1)}` : `${count(band.base_offset)} …`);
    put(parts.state, band.block ? (band.joined > 1 ? `${count(band.joined)} blocks` : `byte ${count(band.position)}`) : `${word}${band.state === "sealed" && band.archived ? " + archived" : ""}`);
    put(parts.size, band.state === "gone" ? records : `${many}${records}, ${bytes(band.size_bytes)}${packed}`);
    put(parts.times, span(band.oldest_ms, band.newest_ms));
    button.title = band.where && band.state !== "gone" ? band.where : "";
  }

  return { update };
}

/** The whole history as a narrow core, and a bracket where one is. */
export function core(column, found, at, go) {
  const rows = [...found.outline].reverse();
  const first = found.outline[0]?.base_offset ?? 0;
  const end = Math.max(found.written, first + 1);
  const size = (band) => Math.max(0.6, ((band.next_offset - band.base_offset) / (end - first)) * 100);
  const slices = rows.map((band) =>
    h("i", {
      "data-state": band.state,
      title: `${band.state} ${count(band.base_offset)} … ${count(band.next_offset - 1)}`,
      vars: { "flex-grow": String(size(band)), ...grain(band.base_offset) },
      onclick: () => band.state !== "gone" && go(band.joined > 1 ? { first: band.base_offset, end: band.next_offset } : { base: band.base_offset }),
    }),
  );
  const [from, to] = reach(found, at, first, end);
  const high = Math.max(1.2, ((to - from) / (end - first)) * 100);
  const top = Math.min(100 - high, ((end - to) / (end - first)) * 100);
  const bracket = high < 100 && h("b", { class: "bracket", vars: { top: `${top}%`, height: `${high}%` } });
  column.setAttribute("aria-hidden", "true");
  put(column, [h("div", { class: "core" }, slices, bracket), h("small", {}, "newest"), h("small", { class: "oldest" }, "oldest")]);
}

function reach(found, at, first, end) {
  if (at.offset !== undefined) return [at.offset, at.offset + 1];
  if (at.start !== undefined) return [at.start, at.until];
  if (at.first !== undefined) return [at.first, at.end];
  if (at.base === undefined) return [first, end];
  const layer = found.outline.find((l) => l.base_offset <= at.base && at.base < l.next_offset);
  return layer && layer.joined === 1 ? [layer.base_offset, layer.next_offset] : [at.base, at.base + 1];
}

/** What the colours mean. */
export function legend(pairs) {
  return pairs.map(([state, text]) => h("span", { class: "key" }, h("i", { "data-state": state }), text));
}
