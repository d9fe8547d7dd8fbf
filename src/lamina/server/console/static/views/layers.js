// A partition as a drill core: layers, then the blocks of a layer, its records, a record's bytes.
// Newest on top, as sediment lies. Every depth has an address, so Back zooms out.

import { act, feed } from "../api.js";
import { ask } from "../dialog.js";
import { h, note, put } from "../dom.js";
import { bytes, count, counted, parseOffset, parsePlace, parseTime, zone } from "../format.js";
import { missing } from "../missing.js";
import { EVERY_MS, watch } from "../watch.js";
import { bands, core, legend } from "./bands.js";
import { record } from "./record.js";
import { recordList } from "./recordlist.js";

const NUMBERS = ["p", "base", "first", "end", "start", "until", "offset"];

function offsetOf(text) {
  const found = parseOffset(text);
  if (found === null) throw new Error("an offset is a whole number: 1234567 or 1,234,567");
  return found;
}

function read(options) {
  const at = {};
  for (const name of NUMBERS) {
    if (options.has(name) && /^\d+$/.test(options.get(name))) at[name] = Number(options.get(name));
  }
  return { p: 0, ...at };
}

export function view(main, context) {
  const { topic, partitions, may } = context;
  let at = read(context.options);
  let inner = null;
  const crumbs = h("nav", { class: "crumbs", "aria-label": "Depth" });
  const totals = h("p", { class: "muted", "aria-live": "polite" });
  const column = h("div", { class: "column" });
  const place = h("div", { class: "deep" });
  const choose = h(
    "select",
    { "aria-label": "Partition", onchange: () => go({ p: Number(choose.value) }) },
    Array.from({ length: partitions }, (_, n) => h("option", { value: n, selected: n === at.p }, `partition ${n}`)),
  );
  const bar = h("div", { class: "bar" }, choose, finder(), h("span", { class: "grow" }), may && actions());
  main.append(bar, crumbs, h("div", { class: "section" }, column, place), totals);

  function address(to) {
    const kept = NUMBERS.filter((name) => to[name] !== undefined).map((name) => `${name}=${to[name]}`);
    return `#/topic/${encodeURIComponent(topic)}/layers?${kept.join("&")}`;
  }
  let carry = false;
  function go(to) {
    carry = place.contains(document.activeElement);
    location.hash = address({ p: at.p, ...to });
  }

  // ---------------------------------------------------------------- looking for a record

  function finder() {
    const when = h("input", { id: "when", placeholder: "2026-01-31 12:00 or -15m", size: 24, autocomplete: "off" });
    const which = h("input", { id: "which", inputmode: "numeric", placeholder: "offset", size: 10, autocomplete: "off" });
    const byTime = async (event) => {
      event.preventDefault();
      try {
        const ms = parseTime(when.value);
        if (ms === null) return;
        const found = await feed("find", { topic, partition: at.p, time_ms: Math.round(ms) });
        if (found.offset === null) note("No record is that late yet.");
        else goToRecord(found.offset);
      } catch (error) {
        note(error.message, "bad");
      }
    };
    const byOffset = (event) => {
      event.preventDefault();
      const to = parsePlace(which.value);
      if (to) goToRecord(to.offset, to.partition).catch((error) => note(error.message, "bad"));
      else note("An offset is a whole number, 1234567 or 1,234,567, or partition:offset.", "bad");
    };
    return [
      h("form", { class: "find", onsubmit: byTime }, h("label", { for: "when" }, "At time"), when, h("button", { type: "submit" }, "Find")),
      h("form", { class: "find", onsubmit: byOffset }, h("label", { for: "which" }, "Offset"), which, h("button", { type: "submit" }, "Go")),
    ];
  }
  async function goToRecord(offset, partition = at.p) {
    const found = await feed("layers", { topic, partition, first: offset, end: offset + 1 });
    const layer = found.layers.at(-1);
    go({ p: partition, base: layer?.base_offset, offset });
  }

  // ---------------------------------------------------------------- doing

  function actions() {
    return [
      h("button", { type: "button", onclick: () => sealNow() }, "Seal"),
      h("button", { type: "button", class: "danger", onclick: () => trim() }, "Trim…"),
      context.format === "wal" && h("button", { type: "button", class: "danger", onclick: () => deleteTag() }, "Delete by tag…"),
    ];
  }
  function sealNow() {
    ask({
      title: "Seal the active segment",
      text: `The active segment of ${topic}, partition ${at.p}, is closed and a new one begins. Sealed segments can be archived and removed.`,
      button: "Seal",
      run: async () => {
        await act("roll", { topic, partition: at.p });
        eyes?.now();
        return "The segment is sealed.";
      },
    });
  }
  function trim() {
    ask({
      title: `Trim ${topic}, partition ${at.p}`,
      text: "Removes whole segments below an offset, for good.",
      fields: [{ name: "before", label: "Before offset", inputmode: "numeric", value: at.base ?? "", required: true }],
      button: "Trim",
      danger: true,
      confirm: topic,
      plan: async ({ before }) => {
        const told = await act("plan_trim", { topic, partition: at.p, before_offset: offsetOf(before) });
        return `This would remove ${counted(told.layers, "layer")} with ${counted(told.records, "record")}.`;
      },
      run: async ({ before }, confirm) => {
        const told = await act("trim", { topic, partition: at.p, before_offset: offsetOf(before), confirm });
        eyes?.now();
        return `The earliest offset is ${count(told.earliest)} now.`;
      },
    });
  }
  function deleteTag() {
    ask({
      title: `Delete by tag in ${topic}, partition ${at.p}`,
      text: "Deletes every record that carries the tag now, at once and for good. Later ones are not meant.",
      fields: [{ name: "tag", label: "Tag", required: true }],
      button: "Delete",
      danger: true,
      confirm: topic,
      run: async ({ tag }, confirm) => {
        const told = await act("delete_by_tag", { topic, partition: at.p, tag, confirm });
        eyes?.now();
        return `Deleted ${counted(told.deleted, "record")}.`;
      },
    });
  }

  // ---------------------------------------------------------------- the depths

  function depth() {
    if (at.offset !== undefined) return "record";
    if (at.start !== undefined) return "records";
    return at.base === undefined ? "layers" : "blocks";
  }

  function showCrumbs() {
    const steps = [["Whole history", {}]];
    if (at.base === undefined && at.first !== undefined) steps.push([`${count(at.first)} … ${count(at.end - 1)}`, { first: at.first, end: at.end }]);
    if (at.base !== undefined) steps.push([`Segment ${count(at.base)}`, { base: at.base }]);
    if (at.base !== undefined && at.first !== undefined) steps.push([`Blocks ${count(at.first)} … ${count(at.end - 1)}`, { base: at.base, first: at.first, end: at.end }]);
    if (at.start !== undefined) steps.push([`Block ${count(at.start)} … ${count(at.until - 1)}`, { ...at, offset: undefined, p: undefined }]);
    if (at.offset !== undefined) steps.push([`Record ${count(at.offset)}`, at]);
    put(crumbs, steps.map(([label, to], i) => [
      i > 0 && h("span", { "aria-hidden": "true" }, "›"),
      h("a", { href: address({ ...to, p: at.p }), "aria-current": i === steps.length - 1 ? "location" : null }, label),
    ]));
  }
  function out() {
    const links = crumbs.querySelectorAll("a");
    carry = true;
    if (links.length > 1) location.hash = links[links.length - 2].getAttribute("href");
  }

  /** Keeps the keyboard where it was: in the drawing, one depth further. */
  function refocus() {
    const first = carry && place.querySelector("button:not(:disabled):not([hidden])");
    if (!first) return;
    first.focus();
    carry = document.activeElement !== first;
  }

  async function look(signal) {
    const where = { topic, partition: at.p };
    const level = depth();
    const found = await feed("layers", { ...where, first: at.base === undefined ? at.first : null, end: at.base === undefined ? at.end : null }, signal);
    core(column, found, at, go);
    const { cold, sealed, active } = found.totals;
    const told = [["cold", cold], ["sealed", sealed], ["active", active]].filter(([, t]) => t);
    put(totals, legend(told.map(([state, t]) => [state, `${state}: ${count(t.layers)} · ${counted(t.records, "record")} · ${bytes(t.size_bytes)}`])), ` durable up to ${count(found.durable)} · times in ${zone()}`);
    if (level === "layers") {
      inner = inner ?? bands(place, "Layers, newest first", (band) => {
        if (band.joined > 1) go({ first: band.base_offset, end: band.next_offset });
        else go({ base: band.base_offset });
      });
      inner.update(found.layers);
    } else if (level === "blocks") {
      const part = await feed("blocks", { ...where, base: at.base, first: at.first, end: at.end }, signal).catch(segmentGone);
      if (!part) return;
      const layer = found.outline.find((l) => l.base_offset <= at.base && at.base < l.next_offset);
      inner = inner ?? bands(place, "Blocks, newest first", (block) => {
        if (block.joined > 1) go({ base: at.base, first: block.base_offset, end: block.next_offset });
        else go({ base: at.base, first: at.first, end: at.end, start: block.base_offset, until: block.next_offset });
      });
      inner.update(part.blocks.map((b) => ({ ...b, state: layer?.state ?? "sealed", compression: layer?.compression ?? "", oldest_ms: null, block: true })));
    } else if (level === "records") {
      inner = inner ?? recordList(place, { ...where, start: at.start, until: at.until, open: (offset) => go({ ...at, offset }), shown: refocus });
    } else {
      inner = inner ?? record(place, { ...where, offset: at.offset, go: (offset) => go({ ...at, offset }), shown: refocus });
    }
    refocus();
  }

  /** Ends the watch of a segment that retention or a trim has removed; other errors go on. */
  function segmentGone(error) {
    if (error.status !== 400) throw error;
    eyes.stop();
    inner?.stop?.();
    const links = [[address({ p: at.p }), "Whole history"]];
    missing(place, { title: "This segment is gone", text: `${error.message}. Retention or a trim may have removed it.`, links });
  }

  let eyes = null;
  function settle() {
    eyes?.stop();
    inner?.stop?.();
    inner = null;
    place.replaceChildren();
    showCrumbs();
    eyes = watch(look, EVERY_MS, (error) => {
      const title = `There is no partition ${at.p}`;
      missing(place, { title, text: error.message, links: [[address({ p: 0 }), "Partition 0"], ["#/topics", "All topics"]] });
    });
  }
  const keys = (event) => {
    if (event.key !== "Backspace" || event.target.matches("input, textarea, select")) return;
    event.preventDefault();
    out();
  };
  document.addEventListener("keydown", keys);
  settle();
  return {
    moved(options) {
      at = read(options);
      choose.value = String(at.p);
      settle();
    },
    stop() {
      eyes.stop();
      inner?.stop?.();
      document.removeEventListener("keydown", keys);
    },
  };
}
