// Am I safe? What would be lost now, by queue, the worst first.
import { h } from "/files/dom.js";
import { askRead } from "/files/server.js";
import { DANGERS, duration, loss, number, plural } from "/files/words.js";

// As in console/http/views.py.
const PAGE_ROWS = 100;
const wanted = { text: "", danger: "", from: 0 };
let typing = 0;

export const safety = { title: "Am I safe?", load };

async function load(again) {
  const shown = await askRead("/view/safety", wanted, again);
  return [
    h("h1", {}, "Am I safe?"),
    h("p", { class: "headline" }, headline(shown)),
    reading(shown),
    chips(shown, again),
    vhosts(shown),
    h("section", { "aria-label": "Queues" }, find(again), table(shown), pages(shown, again)),
  ];
}

function headline({ counts, joint, sites, vhost_rows, vhosts_in_danger }) {
  if (sites.every((site) => site.queues_age_ms === null)) {
    return sites.some((site) => site.is_heard && !site.error) ? "Queues are being read." : "No site reports its queues: what would be lost is not known.";
  }
  const bad = counts.down + counts.one_copy + counts.not_heard + counts.behind;
  const all = Object.values(counts).reduce((sum, each) => sum + each, 0);
  if (all === 0) return "There are no queues.";
  const silent = joint.silent_sites;
  const lost = told(joint.heard, (messages) => ` The loss of every site that leads would lose ${messages} now.`)
    + told(joint.silent, (messages) => ` If ${silent.join(" and ")} never ${silent.length === 1 ? "returns" : "return"}, ${messages} may be lost.`);
  if (bad === 0 && counts.one_site === 0) return `All ${plural(all, "queue")} may lose a machine or a site.${lost}`;
  if (bad === 0) return `All ${plural(all, "queue")} may lose a machine; ${number(counts.one_site)} may not lose their site.${lost}`;
  if (vhost_rows === all) return `Every queue of ${plural(vhosts_in_danger, "virtual host")} is in danger.${lost}`;
  const others = vhosts_in_danger ? `, and every queue of ${plural(vhosts_in_danger, "virtual host")},` : "";
  const known = bad - vhosts_in_danger;
  return `${number(known)} of ${plural(all - vhost_rows, "queue")}${others} ${known === 1 && !others ? "is" : "are"} in danger.${lost}`;
}

/** How many messages would be lost; nothing if none. */
function told({ messages }, sentence) {
  if (messages === 0) return "";
  return sentence(messages === null ? "an unknown number of messages" : `up to ${plural(messages, "message")}`);
}

function reading({ sites, warnings }) {
  const told = [...warnings.map((text) => `▲ ${text}`), ...sites.flatMap((site) => {
    if (!site.is_heard) return [`Site ${site.site} is not heard of: ${site.error || "it has not answered yet"}. ${site.age_ms === null ? "Nothing is known of it." : `What is shown of it is ${duration(site.age_ms / 1000)} old.`}`];
    if (site.error) return [`Site ${site.site}: ${site.error}`];
    return [];
  })];
  return told.length ? h("ul", { class: "notes" }, told.map((text) => h("li", {}, text))) : null;
}

export function badge(danger) {
  const { sign, word, tone, means } = DANGERS[danger];
  return h("span", { class: `badge ${tone}`, title: means }, h("span", { "aria-hidden": "true" }, sign), ` ${word}`);
}

function chips({ counts }, again) {
  const choose = (danger) => () => { Object.assign(wanted, { danger, from: 0 }); again(); };
  const chip = (danger, label, count) => h("button", { class: "chip", "aria-pressed": String(wanted.danger === danger), onclick: choose(danger) }, label, h("b", {}, number(count)));
  const all = Object.values(counts).reduce((total, each) => total + each, 0);
  return h("div", { class: "chips", role: "group", "aria-label": "Show only" },
    chip("", "all", all),
    Object.keys(DANGERS).filter((danger) => counts[danger] || wanted.danger === danger).map((danger) => chip(danger, badge(danger), counts[danger])));
}

function vhosts({ vhosts: rows, vhost_count: all }) {
  if (rows.length < 2) return null;
  return h("details", { class: "vhosts" },
    h("summary", {}, `By virtual host (${number(all)})`),
    all > rows.length ? h("p", { class: "note" }, `Those in the worst state, ${number(rows.length)} of them, are shown.`) : null,
    h("table", { class: "grid" },
      h("thead", {}, h("tr", {}, ["", "virtual host", "site"].map((text) => h("th", {}, text)),
        ["queues", "messages", "if a node goes", "if the site goes"].map((text) => h("th", { class: "n" }, text)))),
      h("tbody", {}, rows.map((row) => h("tr", {},
        h("td", {}, badge(row.danger)), h("td", { "data-label": "virtual host" }, h("bdi", {}, row.vhost)), h("td", { "data-label": "site" }, row.site),
        h("td", { class: "n", "data-label": "queues" }, number(row.queues)), h("td", { class: "n", "data-label": "messages" }, number(row.messages)),
        h("td", { class: "n", "data-label": "if a node goes" }, loss(row.if_node, row.messages)), h("td", { class: "n", "data-label": "if the site goes" }, loss(row.if_site, row.messages)))))));
}

function find(again) {
  const type = (event) => {
    Object.assign(wanted, { text: event.target.value, from: 0 });
    clearTimeout(typing);
    typing = setTimeout(again, 200);
  };
  return h("label", { class: "find" }, "Find a queue or a virtual host ", h("input", { type: "search", value: wanted.text, oninput: type, maxlength: "255" }));
}

function table({ rows }) {
  if (!rows.length) return h("p", { class: "note" }, "No queue is like this.");
  const heads = [["danger", ""], ["queue", ""], ["messages", "n"], ["copies", "copies"], ["newest copy", "n"], ["lost if its node goes", "n"], ["lost if the site goes", "n"]];
  return h("table", { class: "grid queues" },
    h("thead", {}, h("tr", {}, heads.map(([text, kind]) => h("th", { class: kind || null, scope: "col" }, text)))),
    h("tbody", {}, rows.map(line)));
}

function line(row) {
  return h("tr", { key: `${row.site} ${row.vhost} ${row.queue}` },
    h("td", {}, badge(row.danger)),
    h("th", { scope: "row", class: "name" },
      h("bdi", { class: "title" }, row.queue === "" ? "every queue" : row.queue),
      h("span", { class: "place" }, h("bdi", {}, row.vhost), ` at ${row.site}`),
      h("span", { class: "why" }, row.reason)),
    h("td", { class: "n", "data-label": "messages" }, row.queue === "" ? "unknown" : number(row.messages)),
    h("td", { class: "copies", "data-label": "copies" }, copies(row)),
    h("td", { class: "n", "data-label": "newest copy" }, newest(row)),
    h("td", { class: "n", "data-label": "lost if its node goes" }, loss(row.if_node, row.messages)),
    h("td", { class: "n", "data-label": "lost if the site goes" }, loss(row.if_site, row.messages)));
}

function copies(row) {
  return h("ul", {}, row.copies.map((copy) => h("li", {},
    h("b", {}, copy.place), ` ${copy.kind}`, copy.kind === "leader" ? "" : h("span", { class: copy.is_whole ? "good" : "warn" }, ` ${copy.state}`))));
}

function newest(row) {
  const others = row.copies.filter((copy) => copy.kind !== "leader");
  if (!others.length) return "none";
  if (others.some((copy) => copy.is_whole && !copy.is_elsewhere)) return "in sync";
  const ages = others.map((copy) => copy.behind.seconds).filter((age) => age !== null);
  if (!ages.length) return "unknown";
  const age = Math.min(...ages);
  return age === 0 ? "up to date" : `${duration(age)} old`;
}

function pages(shown, again) {
  const last = Math.min(shown.from + shown.rows.length, shown.total);
  const turn = (from) => () => { wanted.from = from; again(); window.scrollTo(0, 0); };
  return h("p", { class: "pages" },
    h("button", { disabled: shown.from === 0, onclick: turn(Math.max(0, shown.from - PAGE_ROWS)) }, "Previous"),
    h("span", {}, shown.total ? `${number(shown.from + 1)} to ${number(last)} of ${number(shown.total)}` : "none"),
    h("button", { disabled: last >= shown.total, onclick: turn(last) }, "Next"));
}
