// The members of groups: who they are, from where, and which partitions each of them reads.

import { count } from "../format.js";
import { table } from "../table.js";

const run = ([first, last]) => (first === last ? String(first) : `${first}–${last}`);

function share(row) {
  if (row.partitions === null) return "in a language of its own";
  if (!row.share.length) return row.state === "Stable" ? "none" : "–";
  return row.share.map(({ topic, spans }) => `${topic} ${spans.map(run).join(", ")}`).join("; ");
}

const COLUMNS = [
  { label: "Member", head: true, cls: "mono cut", cell: (row) => row.member },
  { label: "Instance", cell: (row) => row.instance ?? "–" },
  { label: "Client", cell: (row) => row.client_id || "–" },
  { label: "Host", cls: "mono", cell: (row) => row.host || "–" },
  { label: "Kind", cell: (row) => row.kind },
  { label: "State", cell: (row) => row.state },
  { label: "Assignor", cell: (row) => row.assignor || "–" },
  { label: "Partitions", num: true, cell: (row) => count(row.partitions) },
  { label: "Reads", cell: share },
];

/** A table of members; `grouped` says of each which group it is in. */
export function memberTable({ grouped, empty }) {
  const columns = grouped ? [{ label: "Group", once: true, cell: (row) => row.group }, ...COLUMNS] : COLUMNS;
  return table({ label: "Members", key: (row) => `${row.group}/${row.member}`, columns, empty });
}
