// The cluster: who holds it, how far this server is behind, what a lost machine would take, takeovers.

import { session } from "../api.js";
import { h, put } from "../dom.js";
import { count, instant, seconds } from "../format.js";
import { missing } from "../missing.js";
import { table, tiles } from "../table.js";
import { watch } from "../watch.js";

const ROLES = {
  holder: "This server holds the cluster: it answers appends, groups and reads.",
  standby: "This server stands by: the holder answers, and this one takes over when it is gone.",
  opening: "This server has taken the cluster and opens its store.",
  leaving: "This server hands the cluster over.",
};

export function view(main) {
  const numbers = tiles(["Role", "Epoch", "Lease left", "Not shipped", "Replica lag", "Takeovers"]);
  const what = h("p", { class: "muted" });
  const facts = h("dl", { class: "facts" });
  const history = table({
    label: "Takeovers",
    key: (row) => row.epoch,
    columns: [
      { label: "Epoch", head: true, num: true, cell: (row) => count(row.epoch) },
      { label: "Holder", cls: "mono long", cell: (row) => row.url },
      { label: "Seen here", cell: (row) => instant(row.at_ms) },
    ],
  });
  const diverged = table({
    label: "What was never shipped",
    key: (row) => `${row.epoch} ${row.topic}/${row.partition}`,
    columns: [
      { label: "Partition", head: true, cell: (row) => `${row.topic}/${row.partition}` },
      { label: "Epoch", num: true, cell: (row) => count(row.epoch) },
      { label: "Offsets", cell: (row) => `${count(row.first)} to ${count(row.end)}` },
      { label: "Kept in", cls: "mono long", cell: (row) => row.kept_in },
    ],
  });
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Cluster")),
    numbers.node, what, facts,
    h("h2", {}, "Takeovers"), history.node,
    h("h2", {}, "Set aside here"), diverged.node,
  );
  return watch(async () => {
    const { health } = await session.who();
    const found = health.cluster;
    if (!found?.epoch) throw Object.assign(new Error("This server is in no cluster, or your key is only for some topics."), { status: 404 });
    numbers.update({
      Role: found.role,
      Epoch: count(found.epoch),
      "Lease left": found.role === "holder" ? seconds(found.lease_left_ms / 1000) : "–",
      "Not shipped": `${count(found.unshipped_records)}, ${seconds(found.tail_age_ms / 1000)}`,
      "Replica lag": found.replica_lag_ms === null ? "–" : seconds(found.replica_lag_ms / 1000),
      Takeovers: count(found.takeovers),
    });
    put(what, ROLES[found.role]);
    const rows = [["Cluster", found.name], ["Holder", found.holder || "nobody is known to hold it"], ["This server", found.url]];
    put(facts, rows.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
    history.update([...found.history].reverse());
    diverged.update(found.diverged.flatMap((each) => each.ranges.map((range) => ({ ...range, epoch: each.epoch, kept_in: each.kept_in }))));
  }, 2000, (error) => missing(main, { title: "There is no cluster to show", text: error.message }));
}
