// Talking to the server: JSON both ways, errors as values with a sentence to show.

const MARK = { "x-lamina-console": "1" };

/** What the server refused, in its own words. */
export class Refused extends Error {
  constructor(status, body) {
    super(body?.message || body?.error || `the server answered ${status}`);
    this.status = status;
    this.kind = body?.error;
  }
}

async function call(path, options = {}) {
  let answer;
  try {
    answer = await fetch(`/console/${path}`, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { message: "the server does not answer" });
  }
  const body = await answer.json().catch(() => null);
  options.signal?.throwIfAborted(); // a view that is gone must not be drawn into the next one
  if (!answer.ok) {
    if (answer.status === 401) document.dispatchEvent(new CustomEvent("logged-out"));
    throw new Refused(answer.status, body);
  }
  return body;
}

/** Makes a query of what is given; nothing of what is not. */
export function query(given) {
  const kept = Object.entries(given).filter(([, v]) => v !== null && v !== undefined && v !== "");
  return new URLSearchParams(kept).toString();
}

/** Asks for what a view shows. */
export function feed(name, given = {}, signal = undefined) {
  return call(`feed/${name}?${query(given)}`, { signal });
}

/** Fetches a file that was made for this; what it holds beside what it is. */
export async function fetchFile(path, given) {
  const answer = await fetch(`/console/${path}?${query(given)}`, { credentials: "same-origin" });
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => null));
  return { data: await answer.blob(), about: JSON.parse(answer.headers.get("x-lamina-export")) };
}

function send(path, method, body) {
  const headers = { ...MARK, "content-type": "application/json" };
  return call(path, { method, headers, body: JSON.stringify(body ?? {}) });
}

/** Does something; the answer is what came of it. */
export async function act(name, given = {}) {
  return (await send(`do/${name}`, "POST", given)).result;
}

export const session = {
  who: () => call("session"),
  logIn: (key) => send("session", "POST", { key }),
  logOut: () => send("session", "DELETE"),
};
