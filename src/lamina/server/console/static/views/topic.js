// One topic: what it is, how fast it grows, and its tabs.

import { act, feed } from "../api.js";
import { chart } from "../chart.js";
import { ask } from "../dialog.js";
import { h, put } from "../dom.js";
import { bytes, count, moment, short } from "../format.js";
import { watch } from "../watch.js";
import { href } from "./topics.js";

const TABS = {
  layers: { label: "Layers", load: () => import("./layers.js") },
  tail: { label: "Tail", load: () => import("./tail.js") },
  groups: { label: "Groups", load: () => import("./groups.js") },
  retention: { label: "Retention", load: () => import("./retention.js") },
  settings: { label: "Settings", load: () => import("./settings.js") },
};

export function view(main, context) {
  const [name, wanted] = context.parts;
  const tab = TABS[wanted] ? wanted : "layers";
  const about = h("p", { class: "muted" });
  const rates = chart({ title: "Appended", lines: [{ label: "records/s", colour: "--active" }], show: short, height: 110 });
  const volume = chart({ title: "Volume", lines: [{ label: "bytes/s", colour: "--sealed" }], binary: true, show: bytes, height: 110 });
  const links = Object.entries(TABS).map(([key, each]) =>
    h("a", { href: href(name, key), "aria-current": key === tab ? "page" : null }, each.label),
  );
  const place = h("section", { class: "tab", "aria-label": TABS[tab].label });
  const verify = h("button", { type: "button", onclick: () => verifyTopic(name) }, "Verify now");
  main.append(
    h("div", { class: "head" }, h("h1", {}, name), about, h("span", { class: "grow" }), context.may && verify),
    h("div", { class: "charts two" }, rates.node, volume.node),
    h("nav", { class: "tabs", "aria-label": `Views of ${name}` }, links),
    place,
  );

  let inner = null;
  let stopped = false;
  const eyes = watch(async (signal) => {
    const found = await feed("topic", { topic: name }, signal);
    const size = found.partitions.reduce((sum, part) => sum + part.size_bytes, 0);
    const parts = found.partitions.length;
    put(about, `${found.format} · ${count(parts)} partition${parts === 1 ? "" : "s"} · ${bytes(size)} · created ${moment(found.created_ms).slice(0, 19)}`);
    rates.set(found.series.times, found.series.records);
    volume.set(found.series.times, found.series.bytes);
    if (!inner) {
      const module = await TABS[tab].load();
      if (!stopped && !inner) inner = module.view(place, { ...context, topic: name, partitions: parts, format: found.format, settings: found.settings });
    }
  });
  return {
    moved: (options) => inner?.moved?.(options),
    stop() {
      stopped = true;
      eyes.stop();
      inner?.stop?.();
      rates.stop();
      volume.stop();
    },
  };
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
