// A topic's settings: what each does, and changing them.

import { act } from "../api.js";
import { ask, settingsOf } from "../dialog.js";
import { h, prose } from "../dom.js";
import { setting } from "../format.js";
import { table } from "../table.js";

export function view(main, { topic, settings, may }) {
  const list = table({
    label: "Settings",
    key: (row) => row.key,
    columns: [
      { label: "Setting", head: true, cls: "mono", cell: (row) => row.key },
      { label: "Value", cell: (row) => h("span", { class: row.changed ? "chip good" : null }, setting(row.key, row.value)) },
      { label: "Unit", cell: (row) => row.unit },
      { label: "What it does", once: true, cell: (row) => prose(row.consequence) },
    ],
  });
  const alter = h("button", { type: "button", class: "main", onclick: () => change(topic, settings) }, "Change…");
  const remove = h("button", { type: "button", class: "danger", onclick: () => deleteTopic(topic) }, "Delete topic…");
  main.append(h("div", { class: "bar" }, h("p", { class: "muted" }, "What is not at its default is marked."), h("span", { class: "grow" }), may && alter, may && remove), list.node);
  list.update(settings);
  return {};
}

function deleteTopic(topic) {
  ask({
    title: `Delete ${topic}`,
    text: "Removes the topic with all of its records and groups; nothing brings them back. Objects in the archive are marked as deleted, and go with lamina tier orphans --execute.",
    button: "Delete topic",
    danger: true,
    confirm: topic,
    run: async (_, confirm) => {
      await act("delete_topic", { topic, confirm });
      location.hash = "#/topics";
      return `Topic ${topic} was deleted.`;
    },
  });
}

function change(topic, settings) {
  const changed = settings.filter((each) => each.changed).map((each) => `${each.key}=${each.value}`);
  ask({
    title: `Change ${topic}`,
    text: "What is not named stays as it is. Shorter retention removes segments at the next tick.",
    fields: [{ name: "config", label: "Settings", rows: 5, value: changed.join("\n"), hint: "One key=value per line." }],
    button: "Change",
    danger: true,
    confirm: topic,
    run: async ({ config }) => {
      await act("alter_topic", { topic, config: settingsOf(config) });
      setTimeout(() => dispatchEvent(new HashChangeEvent("hashchange")), 0);
      return `${topic} was changed.`;
    },
  });
}
