// Elements from descriptions. A description is {tag, attrs, on, children}; `render` changes as little of the page as it
// can, so that focus, selection and scrolling survive each refresh. Text only ever becomes text.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "rect", "circle", "line", "path", "text", "title", "polyline", "defs", "marker", "tspan"]);

// Marks that turn the direction of what follows them, also outside of their element, and characters that nobody sees:
// in a stranger's name they would have a page say what it does not. They are shown by their numbers.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const SAID = new Set(["aria-label", "aria-valuetext", "title"]);

export const seen = (text) => text.replace(UNSEEN, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** An element; attributes that begin with "on" are listeners, those that are null or false are left out. */
export function h(tag, attrs = {}, ...children) {
  const plain = {}, on = {};
  for (const [name, value] of Object.entries(attrs ?? {})) {
    if (name.startsWith("on")) on[name.slice(2)] = value;
    else if (value !== null && value !== undefined && value !== false) plain[name] = value === true ? "" : SAID.has(name) ? seen(String(value)) : String(value);
  }
  return { tag, attrs: plain, on, children: flat(children) };
}

function flat(children) {
  return children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false)
    .map((each) => (typeof each === "object" ? each : seen(String(each))));
}

/** Let `parent` have these children and no others. */
export function render(parent, ...children) {
  patch(parent, flat(children), parent.namespaceURI === SVG);
}

function patch(parent, children, inSvg) {
  const wanted = new Set(children.map((child) => child.attrs?.key).filter(Boolean));
  children.forEach((child, at) => {
    let there = parent.childNodes[at];
    // What has gone leaves its place, and what is new takes one: all that stays is not touched, and keeps its focus.
    while (there && !fits(there, child) && keyOf(there) && !wanted.has(keyOf(there))) {
      there.remove();
      there = parent.childNodes[at];
    }
    if (there && fits(there, child)) update(there, child);
    else if (there && keyOf(there)) place(parent, child, there, inSvg);
    else if (there) parent.replaceChild(make(child, inSvg), there);
    else parent.appendChild(make(child, inSvg));
  });
  while (parent.childNodes.length > children.length) parent.lastChild.remove();
}

/** Put a child before another one, which comes later. */
function place(parent, child, later, inSvg) {
  let node = later.nextSibling;
  while (node && !(keyOf(node) && fits(node, child))) node = node.nextSibling;
  if (node) update(node, child);
  parent.insertBefore(node ?? make(child, inSvg), later);
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("key") : null);

function fits(node, child) {
  if (typeof child === "string") return node.nodeType === Node.TEXT_NODE;
  return node.nodeType === Node.ELEMENT_NODE && node.localName === child.tag
    && (node.getAttribute("key") ?? "") === (child.attrs.key ?? "");
}

function update(node, child) {
  if (typeof child === "string") {
    if (node.data !== child) node.data = child;
    return;
  }
  for (const { name } of [...node.attributes]) {
    if (!(name in child.attrs) && !(node.localName === "details" && name === "open")) node.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(child.attrs)) {
    // What the reader has typed or opened stays.
    if ((name === "value" && node.localName !== "progress") || name === "open") continue;
    if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  node.listeners = child.on;
  patch(node, child.children, node.namespaceURI === SVG);
}

function make(child, inSvg) {
  if (typeof child === "string") return document.createTextNode(child);
  const isSvg = child.tag === "svg" || (inSvg && SVG_TAGS.has(child.tag));
  const node = isSvg ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
  for (const [name, value] of Object.entries(child.attrs)) node.setAttribute(name, value);
  node.listeners = child.on;
  for (const name of Object.keys(child.on)) node.addEventListener(name, (event) => node.listeners[name]?.(event));
  patch(node, child.children, isSvg);
  return node;
}
