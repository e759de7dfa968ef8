// Look at messages: those of a queue, or divergent ones. Bodies are text, JSON or octets; none of them is ever markup.
import { h } from "/files/dom.js";
import { ask, send } from "/files/server.js";
import { day, number } from "/files/words.js";

const HEX_OCTETS_MAX = 4096, INDENTS_MAX = 20;
const wanted = { site: "", source: "queue", vhost: "/", queue: "", report: "", from: "", count: "10" };
const SOURCES = [["queue", "of a queue"], ["archived", "archived, of a standby"], ["divergent", "divergent"]];
let found = null, trouble = "", form = "text", asked = "";

export const letters = { title: "Messages", load, refresh_ms: 60_000 };

async function load(again) {
  const session = await ask("/session");
  const sites = session.sites.map((site) => site.site);
  if (asked !== location.hash) { asked = location.hash; Object.assign(wanted, Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] ?? ""))); }
  if (!sites.includes(wanted.site)) [wanted.site] = sites;
  return [
    h("h1", {}, "Messages"),
    look(sites, again),
    wanted.source === "queue" ? h("p", { class: "note" }, "The messages stay in their queue. The broker marks messages that were looked at as redelivered.") : null,
    h("p", { class: "trouble", role: "alert" }, trouble),
    found === null ? null : found.length ? [forms(again), found.map(letter)] : h("p", { class: "note" }, "There are no such messages."),
  ];
}

function look(sites, again) {
  const submit = async (event) => {
    event.preventDefault();
    try {
      const { site, source, vhost, queue, report } = wanted;
      const from_ms = source === "archived" && wanted.from ? new Date(wanted.from).getTime() || 0 : 0;
      found = (await send("POST", "/messages", { site, source, vhost, queue, report, from_ms, count: Number(wanted.count) || 10 })).messages;
      trouble = "";
    } catch (error) { [found, trouble] = [null, error.message]; }
    again();
  };
  const set = (name, redraw) => (event) => { wanted[name] = event.target.value; if (redraw) again(); };
  const input = (name, label, attrs = {}) => h("label", { key: name }, label, h("input", { name, value: wanted[name], oninput: set(name), spellcheck: "false", maxlength: "255", ...attrs }));
  const choice = (name, label, values, redraw) => h("label", { key: name }, label, h("select", { name, onchange: set(name, redraw) },
    values.map(([value, text]) => h("option", { value, selected: wanted[name] === value }, text))));
  return h("form", { class: "look", onsubmit: submit },
    choice("site", "Site", sites.map((site) => [site, site])),
    choice("source", "Messages", SOURCES, true),
    wanted.source === "divergent"
      ? input("report", "Report, or empty for all")
      : [input("vhost", "Virtual host", { required: true }), input("queue", "Queue", { required: true })],
    wanted.source === "archived" ? input("from", "From, or empty for the oldest", { type: "datetime-local", step: "1" }) : null,
    input("count", "At most", { type: "number", min: "1", max: "50" }),
    h("button", { class: "main" }, "Look"),
    wanted.source === "divergent" ? h("a", { href: `/divergent?${new URLSearchParams({ site: wanted.site, report: wanted.report })}`, download: "" }, "Export all as a file") : null);
}

function forms(again) {
  const choose = (name) => () => { form = name; again(); };
  return h("div", { class: "chips", role: "group", "aria-label": "Bodies as" }, ["text", "JSON", "hex"].map((name) =>
    h("button", { class: "chip", "aria-pressed": String(form === name), onclick: choose(name) }, name)));
}

function letter(message, at) {
  const properties = Object.entries(Array.isArray(message.properties) ? {} : message.properties);
  const plain = properties.filter(([name]) => name !== "headers");
  const headers = Object.entries(message.properties.headers ?? {});
  const place = message.queue ? [["queue", `${message.queue} in ${message.vhost}`]] : [];
  if (message.offset !== null) place.push(["offset", number(message.offset)]);
  if (message.timestamp_ms !== null) place.push(["stored", day(message.timestamp_ms)]);
  if (message.settled !== null) place.push(["settled", message.settled ? "yes: consumed, expired or dropped" : "no"]);
  return h("article", { class: "card letter", key: String(at), "aria-label": `Message ${at + 1}` },
    h("dl", {}, [...place, ["exchange", message.exchange || "(default)"], ["routing key", message.routing_key], ...plain, ...headers.map(([name, value]) => [`header ${name}`, value])]
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("bdi", {}, typeof value === "object" ? JSON.stringify(value) : String(value)))))),
    h("pre", { tabindex: "0" }, body(message)),
    message.is_cut ? h("p", { class: "note" }, "Only the beginning of the body is shown.") : null);
}

function body(message) {
  const octets = message.payload_encoding === "base64" ? fromBase64(message.payload) : new TextEncoder().encode(message.payload);
  if (form === "hex") return hex(octets);
  const text = message.payload_encoding === "base64" ? new TextDecoder("utf-8").decode(octets) : message.payload;
  if (form === "JSON") { try { JSON.parse(text); return laidOut(text); } catch { return `(no JSON)\n${text}`; } }
  return text;
}

/** JSON with lines and indents; all else stays as it is in the message, such as numbers that a script would round. */
function laidOut(text) {
  let out = "", depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, INDENTS_MAX))}`;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
  tokens.forEach((token, at) => {
    const isEmpty = "}]".includes(token) && "{[".includes(tokens[at - 1]);
    if ("}]".includes(token)) { depth -= 1; out += isEmpty ? token : line() + token; }
    else if (token === ":") out += ": ";
    else if (token === ",") out += `,${line()}`;
    else if ("{[".includes(token)) { depth += 1; out += "}]".includes(tokens[at + 1]) ? token : token + line(); }
    else out += token;
  });
  return out;
}

function fromBase64(text) {
  // A body that was cut ends anywhere.
  try { return Uint8Array.from(atob(text.slice(0, text.length - (text.length % 4))), (letter_) => letter_.charCodeAt(0)); } catch { return new Uint8Array(); }
}

function hex(octets) {
  const lines = [];
  for (let at = 0; at < Math.min(octets.length, HEX_OCTETS_MAX); at += 16) {
    const row = [...octets.slice(at, at + 16)];
    const numbers = row.map((octet) => octet.toString(16).padStart(2, "0")).join(" ");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${numbers.padEnd(47)}  ${row.map((octet) => (octet > 31 && octet < 127 ? String.fromCharCode(octet) : ".")).join("")}`);
  }
  if (octets.length > HEX_OCTETS_MAX) lines.push(`… ${number(octets.length - HEX_OCTETS_MAX)} more octets`);
  return lines.join("\n");
}
