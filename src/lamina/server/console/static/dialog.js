// Asking before doing: a dialog with fields, what it will do in words, and a name to type.

import { h, note, put } from "./dom.js";

/**
 * Asks, then does. A field is {name, label, value?, type?, options?, hint?}. With `confirm` the
 * button stays off until that name was typed. `plan(values)` may tell beforehand what will happen.
 * @returns {Promise<boolean>} whether it was done
 */
export function ask({ title, text, fields = [], button, confirm = null, danger = false, plan = null, run }) {
  const inputs = Object.fromEntries(fields.map((f) => [f.name, input(f)]));
  const typed = h("input", { id: "dialog-confirm", autocomplete: "off", spellcheck: "false", required: true });
  const problem = h("p", { class: "problem", role: "alert" });
  const preview = h("p", { class: "plan", "aria-live": "polite" });
  const go = h("button", { type: "submit", class: danger ? "danger" : "main" }, button);
  const values = () => Object.fromEntries(Object.entries(inputs).map(([k, v]) => [k, v.value]));

  return new Promise((resolve) => {
    let done = false;
    const stop = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const form = h(
      "form",
      { method: "dialog" },
      h("h2", { id: "dialog-title" }, title),
      text && h("p", {}, text),
      fields.map((f) => label(f, inputs[f.name])),
      confirm !== null && h("p", {}, h("label", { for: "dialog-confirm" }, "Type ", h("b", {}, confirm), " to confirm"), typed),
      preview,
      problem,
      h("p", { class: "buttons" }, stop, go),
    );
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);

    async function changed() {
      go.disabled = confirm !== null && typed.value !== confirm;
      if (plan) put(preview, await Promise.resolve(values()).then(plan).catch((error) => error.message));
    }
    form.addEventListener("input", changed);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      put(problem, "");
      try {
        const told = await run(values(), typed.value);
        done = true;
        dialog.close();
        if (told) note(told, "good");
      } catch (error) {
        put(problem, error.message);
        go.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(done);
    });
    document.body.append(dialog);
    dialog.showModal();
    changed();
  });
}

function input(field) {
  const about = { id: `dialog-${field.name}`, name: field.name, autocomplete: "off", spellcheck: "false" };
  if (field.options) {
    return h("select", about, field.options.map((o) => h("option", { value: o, selected: o === field.value }, o)));
  }
  if (field.rows) return h("textarea", { ...about, rows: field.rows, placeholder: field.placeholder }, field.value ?? "");
  return h("input", { ...about, type: field.type ?? "text", value: field.value ?? "", placeholder: field.placeholder, inputmode: field.inputmode, min: field.min, required: field.required });
}

function label(field, control) {
  return h("p", {}, h("label", { for: control.id }, field.label), control, field.hint && h("small", {}, field.hint));
}

/** Reads lines of `key=value` as settings. */
export function settingsOf(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(
    lines.map((line) => {
      const at = line.indexOf("=");
      if (at < 1) throw new Error(`“${line}” is no setting; write key=value`);
      return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    }),
  );
}
