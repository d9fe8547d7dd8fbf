// One topic: what it is, how fast it grows, and its tabs.

import { act, feed } from "../api.js";
import { chart } from "../chart.js";
import { ask } from "../dialog.js";
import { h, put } from "../dom.js";
import { bytes, counted, instant } from "../format.js";
import { missing } from "../missing.js";
import { EVERY_MS, watch } from "../watch.js";
import { asked, windowPicker } from "../windows.js";
import { produce } from "./producing.js";
import { href } from "./topics.js";

const TABS = {
  layers: { label: "Layers", load: () => import("./layers.js") },
  partitions: { label: "Partitions", load: () => import("./partitions.js") },
  schema: { label: "Schema", load: () => import("./schema.js") },
  tail: { label: "Tail", load: () => import("./tail.js") },
  groups: { label: "Groups", load: () => import("./groups.js") },
  retention: { label: "Retention", load: () => import("./retention.js") },
  settings: { label: "Settings", load: () => import("./settings.js") },
};

export function view(main, context) {
  const [name, wanted] = context.parts;
  const tab = wanted || "layers";
  if (!Object.hasOwn(TABS, tab)) {
    missing(main, { title: "There is no such page", text: `A topic has no page “${wanted}”.`, links: [[href(name), name], ["#/topics", "All topics"]] });
    return {};
  }
  const about = h("p", { class: "muted" });
  const rates = chart({ title: "Appended", lines: [{ label: "records/s", colour: "--active" }], kind: "rate", height: 110 });
  const volume = chart({ title: "Volume", lines: [{ label: "bytes/s", colour: "--sealed" }], kind: "bytes", height: 110 });
  const links = Object.entries(TABS).map(([key, each]) =>
    h("a", { href: href(name, key), "aria-current": key === tab ? "page" : null }, each.label),
  );
  const place = h("section", { class: "tab", "aria-label": TABS[tab].label });
  const verify = h("button", { type: "button", onclick: () => verifyTopic(name) }, "Verify now");
  let shape = { partitions: 1, format: "keratin" };
  const append = h("button", { type: "button", class: "main", disabled: true, onclick: () => produce(name, shape) }, "Produce…");
  main.append(
    h("div", { class: "head" }, h("h1", {}, name), about, h("span", { class: "grow" }), context.can("write") && append, context.may && verify),
    windowPicker(() => eyes.now()),
    h("div", { class: "charts two" }, rates.node, volume.node),
    h("nav", { class: "tabs", "aria-label": `Views of ${name}` }, links),
    place,
  );

  let inner = null;
  let stopped = false;
  let options = context.options; // those of the newest address, which may come before the tab
  const eyes = watch(async (signal) => {
    const found = await feed("topic", { topic: name, ...asked() }, signal);
    const size = found.partitions.reduce((sum, part) => sum + part.size_bytes, 0);
    const parts = found.partitions.length;
    put(about, `${found.format} · ${counted(parts, "partition")} · ${bytes(size)} · created ${instant(found.created_ms).replace(/\.\d{3}/, "")}`);
    shape = { partitions: parts, format: found.format };
    append.disabled = false; // what may be asked depends on the shape
    rates.set(found.series.times, found.series.records);
    volume.set(found.series.times, found.series.bytes);
    if (!inner) {
      const module = await TABS[tab].load();
      if (!stopped && !inner) inner = module.view(place, { ...context, options, topic: name, partitions: parts, format: found.format, settings: found.settings });
    }
  }, EVERY_MS, (error) => {
    stop();
    const title = error.status === 403 ? "This topic is not for your key" : `There is no topic ${name}`;
    missing(main, { title, text: error.message });
  });
  function stop() {
    stopped = true;
    eyes.stop();
    inner?.stop?.();
    rates.stop();
    volume.stop();
  }
  function moved(to) {
    options = to;
    inner?.moved?.(to);
  }
  return { moved, stop };
}

function verifyTopic(topic) {
  ask({
    title: "Verify now",
    text: `Reads every record of ${topic}, local and archived, and checks every checksum. Appends and reads go on.`,
    button: "Verify",
    run: async () => {
      await act("verify", { topic });
      location.hash = "#/jobs";
      return `Verifying ${topic}.`;
    },
  });
}
