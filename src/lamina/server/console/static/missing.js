// A page for what is not there, or not for this key: what was asked for, why not, and where to go.

import { h } from "./dom.js";

/** Replaces a view by an explanation. `links` are [address, label]. */
export function missing(main, { title, text, links = [["#/topics", "All topics"]] }) {
  main.replaceChildren(
    h("div", { class: "missing", role: "alert" },
      h("h1", {}, title),
      h("p", {}, text),
      h("p", { class: "bar" }, links.map(([to, label]) => h("a", { href: to }, label)))),
  );
  document.title = `${title} – Lamina`;
}

/** Whether an error means that there is nothing to show, now or later. */
export const isFinal = (error) => error.status === 404 || error.status === 403;
