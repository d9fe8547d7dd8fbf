// Producing one record, durably: key, value, headers, and the partition it goes to.

import { act } from "../api.js";
import { ask, settingsOf } from "../dialog.js";
import { count } from "../format.js";

const BY_KEY = "by its key";
const VALUES = {
  text: (text) => text,
  JSON: (text) => {
    JSON.parse(text);
    return text;
  },
  base64: (text) => ({ base64: text.trim() }),
  "null, a tombstone": () => null,
};

function fields({ partitions, format }) {
  const numbers = Array.from({ length: Math.min(partitions, 1000) }, (_, n) => String(n));
  return [
    partitions > 1 && { name: "partition", label: "Partition", options: [BY_KEY, ...numbers], value: BY_KEY },
    format === "wal" ? { name: "tag", label: "Tag" } : { name: "key", label: "Key", hint: "Empty for none." },
    { name: "kind", label: "The value is", options: Object.keys(VALUES), value: "text" },
    { name: "value", label: "Value", rows: 5 },
    format === "keratin" && { name: "headers", label: "Headers", rows: 2, placeholder: "source=console", hint: "One name=value per line." },
  ].filter(Boolean);
}

function recordOf(values) {
  const record = { value: VALUES[values.kind](values.value) };
  if (values.key) record.key = values.key;
  if (values.tag) record.tag = values.tag;
  const headers = Object.entries(settingsOf(values.headers ?? ""));
  if (headers.length) record.headers = headers;
  return record;
}

/** Asks for a record and appends it; `shape` is the topic's format and number of partitions. */
export function produce(topic, shape) {
  return ask({
    title: `Produce to ${topic}`,
    text: "Appends one record. It is on disk when this says so.",
    fields: fields(shape),
    button: "Produce",
    run: async (values) => {
      const chosen = values.partition === undefined || values.partition === BY_KEY ? null : Number(values.partition);
      const told = await act("produce", { topic, partition: chosen, record: recordOf(values) });
      return `Stored in partition ${told.partition} at offset ${count(told.offset)}, ${told.durability}.`;
    },
  });
}
