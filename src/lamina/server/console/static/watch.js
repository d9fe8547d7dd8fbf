// Asking again and again, while somebody looks.

import { note } from "./dom.js";
import { isFinal } from "./missing.js";

export const EVERY_MS = 2000;

/**
 * Calls `look` now and every two seconds while the page is visible; stops when told to.
 * A failure is shown once, and forgotten when things work again. With `lost`, what is not there
 * (any more) or not allowed ends the watch and is handed over instead.
 */
export function watch(look, everyMs = EVERY_MS, lost = null) {
  const control = new AbortController();
  let timer = 0;
  let failing = "";
  let turn = 0;

  async function once() {
    clearTimeout(timer);
    const mine = ++turn;
    try {
      if (!document.hidden || mine === 1) await look(control.signal);
      failing = "";
    } catch (error) {
      if (control.signal.aborted) return;
      if (lost && isFinal(error)) {
        control.abort();
        lost(error);
        return;
      }
      if (error.message !== failing) note(error.message, "bad");
      failing = error.message;
    }
    if (mine === turn && !control.signal.aborted) timer = setTimeout(once, everyMs);
  }
  once();
  return {
    now: once,
    stop() {
      control.abort();
      clearTimeout(timer);
    },
  };
}
