// Making elements. Text is always text: nothing here, and nothing that uses it, parses markup.

/**
 * Makes an element: attributes, `on…` listeners, then children (nodes, text, or nothing).
 * @param {string} tag
 * @param {object} [attributes]
 * @param {...(Node|string|number|null|undefined|Array)} children
 */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** Makes an element of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") {
      for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    } else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Text of the server in which `names` stand between backticks: those become code. */
export const prose = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));

/** Replaces what an element holds, but only if its text changes or nodes are given. */
export function put(element, ...children) {
  const plain = children.every((child) => !(child instanceof Node) && !Array.isArray(child));
  const text = plain ? children.filter((c) => c !== null && c !== undefined).join("") : null;
  if (text !== null) {
    if (element.textContent !== text) element.textContent = text;
    return element;
  }
  element.replaceChildren();
  add(element, children);
  return element;
}

/** Tells people, and screen readers, what happened. */
export function note(text, kind = "info") {
  const line = h("p", { class: `note ${kind}` }, text);
  const list = document.getElementById("notes");
  list.append(line);
  while (list.childElementCount > 4) list.firstElementChild.remove();
  setTimeout(() => line.remove(), kind === "bad" ? 12000 : 6000);
}
