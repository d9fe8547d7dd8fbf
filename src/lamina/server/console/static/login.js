// Presenting a key, once: the server keeps a session, the page keeps nothing.

import { session } from "./api.js";
import { h, put } from "./dom.js";

/** Shows the form; calls `begin` with who one is. */
export function login(main, begin) {
  const key = h("input", { id: "key", type: "password", autocomplete: "current-password", required: true, spellcheck: "false" });
  const problem = h("p", { class: "problem", role: "alert" });
  const go = h("button", { class: "main", type: "submit" }, "Log in");
  const form = h(
    "form",
    {
      class: "login",
      onsubmit: async (event) => {
        event.preventDefault();
        go.disabled = true;
        try {
          begin(await session.logIn(key.value));
        } catch (error) {
          put(problem, error.message);
          key.select();
          key.focus();
        }
        go.disabled = false;
      },
    },
    h("h1", {}, "Who looks?"),
    h("p", { class: "muted" }, "This server asks for an API key. It is sent once and kept by neither the page nor the browser."),
    h("label", { for: "key" }, "API key"),
    key,
    problem,
    go,
  );
  main.replaceChildren(form);
  key.focus();
}
