// Keys and limits: who may do what, and how much of each limit is in use. Nothing here changes them.

import { feed } from "../api.js";
import { h, put } from "../dom.js";
import { bytes, count } from "../format.js";
import { table } from "../table.js";
import { watch } from "../watch.js";
import { settingTable } from "./broker.js";

const covers = (prefix) => (prefix ? `topics ${prefix}…` : "all topics");

/** Bytes per second; -1 is no limit, and -2 what the server's setting says. */
function quota(amount) {
  if (amount === -2) return "as the setting";
  return amount === -1 ? "no limit" : `${bytes(amount)}/s`;
}

function inUse(row) {
  if (row.used === null) return "–";
  return row.key.endsWith("bytes") ? bytes(row.used) : count(row.used);
}

export function view(main) {
  const mine = h("p", { class: "muted" });
  const list = table({
    label: "Keys",
    key: (row) => row.id,
    empty: "No keys are listed.",
    columns: [
      { label: "Key id", head: true, cls: "mono", cell: (row) => row.id },
      { label: "Scope", cell: (row) => h("span", { class: "chip" }, row.scope) },
      { label: "Covers", cell: (row) => covers(row.prefix) },
      { label: "May append", num: true, cell: (row) => quota(row.produce_bytes) },
      { label: "May fetch", num: true, cell: (row) => quota(row.fetch_bytes) },
      { label: "Note", cell: (row) => row.note || "–" },
    ],
  });
  const why = h("p", { class: "muted" });
  const limits = settingTable("Limits", [{ label: "In use", num: true, cell: inUse }]);
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Keys and limits")), mine,
    h("h2", {}, "Keys"), why, list.node,
    h("h2", {}, "Limits"), limits.node,
  );
  return watch(async (signal) => {
    const found = await feed("keys", {}, signal);
    const { caller } = found;
    put(mine, found.needs_key ? `Your key ${caller.name} may ${caller.scope}, ${covers(caller.prefix)}.` : "This server asks for no keys and listens on loopback only: whoever reaches it may do everything.");
    list.node.hidden = found.keys === null || !found.needs_key;
    if (!found.needs_key) put(why, ["Make one with ", h("code", {}, "lamina key create"), " and set ", h("code", {}, "keys.file"), "."]);
    else if (found.keys === null) put(why, "The keys are listed for admins of all topics.");
    else put(why, `${count(found.total)} known. A key's secret is kept nowhere: only its id, its scope and its note are.`);
    list.update(found.keys ?? []);
    limits.update(found.limits);
  }, 5000);
}
