// The span of time that charts show: chosen once, for all of them, until the browser is closed.

import { h } from "./dom.js";
import { zone } from "./format.js";

const WINDOWS = [
  { seconds: 60, name: "minute" },
  { seconds: 300, name: "5 minutes" },
  { seconds: 900, name: "15 minutes" },
  { seconds: 3600, name: "hour" },
  { seconds: 21600, name: "6 hours" },
  { seconds: 86400, name: "24 hours" },
];
const KEPT = "lamina-window";

/** The window that is chosen. */
export function chosen() {
  const kept = Number(sessionStorage.getItem(KEPT));
  return WINDOWS.find((each) => each.seconds === kept) ?? WINDOWS[2];
}

/** What a feed with charts is asked for. */
export const asked = () => ({ window_s: chosen().seconds });

/** Chooses a window; `then` looks again. */
export function windowPicker(then) {
  const select = h(
    "select",
    {
      id: "window",
      onchange: () => {
        sessionStorage.setItem(KEPT, select.value);
        then();
      },
    },
    WINDOWS.map(({ seconds, name }) => h("option", { value: seconds, selected: seconds === chosen().seconds }, name)),
  );
  return h("p", { class: "window field" }, h("label", { for: "window" }, "Charts show the last"), select, h("span", { class: "muted" }, `in ${zone()}`));
}
