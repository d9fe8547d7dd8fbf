// The frame around the views: who looks, where they are, the theme and the keys.

import { session } from "./api.js";
import { h, note, put } from "./dom.js";
import { login } from "./login.js";
import { missing } from "./missing.js";

const VIEWS = {
  topics: { label: "Topics", load: () => import("./views/topics.js") },
  topic: { load: () => import("./views/topic.js"), under: "topics" },
  groups: { label: "Groups", load: () => import("./views/groups.js") },
  group: { load: () => import("./views/group.js"), under: "groups" },
  writers: { label: "Writer", load: () => import("./views/writers.js") },
  archive: { label: "Archive", load: () => import("./views/archive.js") },
  spark: { label: "Spark", load: () => import("./views/queries.js") },
  reports: { label: "Reports", load: () => import("./views/reports.js") },
  jobs: { label: "Jobs", load: () => import("./views/jobs.js") },
  clients: { label: "Clients", load: () => import("./views/clients.js") },
  broker: { label: "Broker", load: () => import("./views/broker.js") },
  keys: { label: "Keys", load: () => import("./views/keys.js") },
  cluster: { label: "Cluster", load: () => import("./views/cluster.js") },
};
const UNKNOWN = { load: async () => ({ view: unknown }) };
const SCOPES = ["read", "write", "admin"];
const SHOWN = Object.entries(VIEWS).filter(([, view]) => view.label);
const main = document.getElementById("main");
let current = null;
let turn = 0;
let caller = null;
let role = null; // in a cluster

/** Where the address leads: `#/topic/orders/layers?p=0` is a view, its parts and its options. */
function route() {
  const [path, options] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...parts] = path.split("/").map(plain);
  const first = role && role !== "holder" ? "cluster" : "topics"; // topics are the holder's to show
  return { name: name || first, parts, options: new URLSearchParams(options) };
}

/** A part of an address as text; one that no page has made is taken as it is. */
function plain(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function unknown(place, { name }) {
  missing(place, { title: "There is no such page", text: `The console has no page “${name}”. The pages are in the list; a topic's are reached from its name.` });
}

async function show() {
  if (!caller) return;
  const mine = ++turn;
  const at = route();
  const same = current && current.name === at.name && current.parts.join("/") === at.parts.join("/");
  const wanted = Object.hasOwn(VIEWS, at.name) ? VIEWS[at.name] : UNKNOWN;
  mark(wanted.under ?? at.name);
  if (same && current.view.moved) {
    current.view.moved(at.options);
    return;
  }
  const module = await wanted.load();
  if (mine !== turn) return;
  current?.view.stop?.();
  current = { ...at, view: { stop() {} } };
  main.replaceChildren();
  try {
    current.view = module.view(main, { ...at, caller, can, may: can("admin") }) ?? current.view;
  } catch (error) {
    note(error.message, "bad");
    throw error;
  }
  const title = main.querySelector("h1")?.textContent;
  document.title = title ? `${title} – Lamina` : "Lamina";
}

/** Whether the key may do what needs a scope: admin may write, write may read. */
function can(scope) {
  return SCOPES.indexOf(caller.scope) >= SCOPES.indexOf(scope);
}

function mark(name) {
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** The key of a view: 1 to 9, and 0 for the tenth. */
const digit = (i) => String((i + 1) % 10);

function buildNav() {
  const links = SHOWN.filter(([name]) => role || name !== "cluster").map(([name, view], i) =>
    h("a", { href: `#/${name}`, "data-view": name, "aria-keyshortcuts": digit(i) }, view.label, h("kbd", { "aria-hidden": "true" }, digit(i))),
  );
  document.getElementById("nav").replaceChildren(...links);
}

// ------------------------------------------------------------------ who

function begin(told) {
  caller = told.caller;
  role = told.health.cluster?.role ?? null;
  const who = document.getElementById("who");
  const out = h("button", { type: "button", class: "quiet", onclick: logOut }, "Log out");
  const prefix = caller.prefix ? `, topics ${caller.prefix}…` : "";
  who.replaceChildren(h("span", { class: "chip" }, `${caller.scope}${prefix}`), ...(told.needs_key ? [out] : []));
  healthy(told.health);
  buildNav();
  current = null;
  show();
}

function healthy(health) {
  const place = document.getElementById("health");
  place.dataset.status = health.status;
  put(place, health.status === "ok" ? "healthy" : health.problems.join("; "));
}

async function logOut() {
  await session.logOut();
  location.reload();
}

function enter() {
  turn += 1;
  current?.view.stop?.();
  current = null;
  caller = null;
  document.getElementById("nav").replaceChildren();
  document.getElementById("who").replaceChildren();
  login(main, begin);
}

async function start() {
  const told = await session.who().catch((error) => note(error.message, "bad"));
  if (!told) setTimeout(start, 2000);
  else if (told.caller) begin(told);
  else enter();
}

setInterval(async () => {
  if (!caller || document.hidden) return;
  const told = await session.who().catch(() => null);
  if (told?.health) healthy(told.health);
  else if (!told) healthy({ status: "gone", problems: ["the server does not answer"] });
}, 5000);

// ------------------------------------------------------------------ theme and keys

const THEMES = ["auto", "light", "dark"];
const themeButton = document.getElementById("theme");

function theme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("lamina-theme", name);
  themeButton.setAttribute("aria-label", `Theme: ${name}`);
  put(themeButton, { auto: "Auto", light: "Light", dark: "Dark" }[name]);
  document.dispatchEvent(new CustomEvent("themed"));
}

themeButton.addEventListener("click", () => {
  theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
});

const HELP = [
  ["1 … 9, 0", "go to a view"],
  ["/", "search"],
  ["Tab, Enter", "choose a row, a layer, a record"],
  ["↑ ↓", "walk through layers, blocks and records"],
  ["Backspace", "zoom out"],
  ["Space", "pause or resume the tail"],
  ["?", "this list"],
];

function help() {
  const rows = HELP.map(([keys, what]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, keys)), h("td", {}, what)));
  const close = h("button", { type: "button", class: "main", onclick: () => dialog.close() }, "Close");
  const dialog = h("dialog", { "aria-label": "Keyboard shortcuts", onclose: () => dialog.remove() }, h("h2", {}, "Keys"), h("table", {}, rows), h("p", { class: "buttons" }, close));
  document.body.append(dialog);
  dialog.showModal();
}

document.getElementById("help").addEventListener("click", help);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // an address is a view, never a place in one
  main.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input, select, textarea")) return;
  const view = /^\d$/.test(event.key) && SHOWN[(Number(event.key) + 9) % 10];
  if (view) location.hash = `#/${view[0]}`;
  else if (event.key === "/") document.querySelector("input[type=search]")?.focus();
  else if (event.key === "?") help();
  else return;
  event.preventDefault();
});

theme(THEMES.includes(localStorage.getItem("lamina-theme")) ? localStorage.getItem("lamina-theme") : "auto");
addEventListener("hashchange", show);
document.addEventListener("logged-out", () => caller && enter());
start();
