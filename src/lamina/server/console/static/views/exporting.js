// What was searched, as a file: JSON lines or CSV, made by the server and saved by the browser.

import { fetchFile } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { counted } from "../format.js";

const [LINES, CSV] = ["JSON lines", "CSV"];

/** Asks for the format, then saves; `given()` is what was searched, as the tail asks for it. */
export function exportSearch(topic, given) {
  return ask({
    title: `Export ${topic}`,
    text: "Saves the records that match the filters, from the earliest or the given offset on: at most 10,000 records and 16 MiB. Values are whole. JSON lines lose nothing; CSV is for spreadsheets.",
    fields: [{ name: "format", label: "Format", options: [LINES, CSV], value: LINES }],
    button: "Export",
    run: async ({ format }) => {
      const kind = format === CSV ? "csv" : "jsonl";
      const { data, about } = await fetchFile("export", { ...given(), topic, format: kind });
      save(data, `${topic}.${kind}`);
      const rest = about.whole ? "That is all of them." : "There are more: narrow the search, or begin at a later offset.";
      return `Exported ${counted(about.records, "record")}. ${rest}`;
    },
  });
}

function save(data, name) {
  const url = URL.createObjectURL(data);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
