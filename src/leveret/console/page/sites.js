// Sites: who is there, who follows whom. The picture is drawn from what the sites say.
import { h } from "/files/dom.js";
import { askRead, send } from "/files/server.js";
import { clock, day, duration, number, plural, short } from "/files/words.js";

const WIDE = 720, BOX = 232, GAP_X = 150, GAP_Y = 64, PAD = 8, LINE = 19;

export const sites = { title: "Sites", load };

async function load(again) {
  const shown = await askRead("/view/sites", {}, again);
  return [
    h("h1", {}, "Sites"),
    picture(shown),
    h("div", { class: "cards" }, shown.sites.map((site) => card(site, shown, again))),
  ];
}

// -- the picture --------------------------------------------------------------------------------

function picture({ sites: list, links }) {
  const boxes = list.map((site) => ({ site, id: site.site, height: 66 + LINE * Math.min(site.nodes.length, 6) }));
  const known = new Set(boxes.map((box) => box.id));
  // A site that never answered has not said its name to the others: it may be the one that they speak of.
  const unheard = list.filter((site) => site.heard_ms === null && !site.refused).map((site) => site.site);
  const who = unheard.length ? `perhaps site ${unheard.join(", ")}` : "not among this console's sites";
  // A site that is only heard of through another one is in the picture, too.
  for (const link of links) for (const id of [link.from, link.to]) {
    const name = id || `upstream of ${link.to}`;
    if (!known.has(name)) { known.add(name); boxes.push({ site: null, id: name, who, height: 66 }); }
  }
  const edges = links.map((link) => ({ ...link, from: link.from || `upstream of ${link.to}` }));
  const size = place(boxes, edges);
  const byId = Object.fromEntries(boxes.map((box) => [box.id, box]));
  return h("figure", { class: "picture" },
    h("svg", { viewBox: `0 0 ${size.width} ${size.height}`, width: size.width, height: size.height, role: "img", "aria-label": inWords(list, edges) },
      h("defs", {}, h("marker", { id: "arrow", viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "8", markerHeight: "8", orient: "auto-start-reverse" }, h("path", { d: "M0 0L8 4L0 8z" }))),
      edges.map((edge) => arrow(edge, byId, size.isWide)),
      boxes.map(box)));
}

function place(boxes, edges) {
  const isWide = document.getElementById("main").clientWidth >= WIDE;
  const level = Object.fromEntries(boxes.map((each) => [each.id, 0]));
  for (let round = 0; round < boxes.length; round += 1) for (const edge of edges) {
    if (level[edge.to] <= level[edge.from] && level[edge.from] < boxes.length - 1) level[edge.to] = level[edge.from] + 1;
  }
  return isWide ? inColumns(boxes, level) : inOneColumn(boxes, level, edges);
}

/** Who is followed to the left of who follows. */
function inColumns(boxes, level) {
  const ends = {};
  let width = 0, height = 0;
  const levels = [...new Set(Object.values(level))].sort((a, b) => a - b);
  for (const each of boxes) {
    const at = levels.indexOf(level[each.id]);
    Object.assign(each, { x: PAD + at * (BOX + GAP_X), y: ends[at] ?? PAD });
    ends[at] = each.y + each.height + 28;
    width = Math.max(width, each.x + BOX + PAD);
    height = Math.max(height, each.y + each.height + PAD);
  }
  return { isWide: true, width, height };
}

/** Who is followed above who follows; sites without a link come last. */
function inOneColumn(boxes, level, edges) {
  const linked = new Set(edges.flatMap((edge) => [edge.from, edge.to]));
  const rank = (each) => (linked.has(each.id) ? level[each.id] : boxes.length);
  let y = PAD;
  for (const each of [...boxes].sort((a, b) => rank(a) - rank(b))) {
    Object.assign(each, { x: PAD, y });
    y += each.height + (linked.has(each.id) ? GAP_Y : 20);
  }
  return { isWide: false, width: BOX + 2 * PAD, height: y };
}

function box({ site, id, who, x, y, height }) {
  const is = site === null ? "unknown" : site.is_heard ? "alive" : "lost";
  const head = site === null ? who
    : site.is_heard ? `✓ alive · ${site.role}` : site.heard_ms === null ? "? not heard of yet" : `✕ not heard for ${duration(site.age_ms / 1000)}`;
  const nodes = site === null ? [] : site.nodes.slice(0, 6);
  return h("g", { class: `site ${is}`, key: id },
    h("title", {}, id),
    h("rect", { x, y, width: BOX, height, rx: 9 }),
    h("text", { x: x + 14, y: y + 25, class: "name" }, short(id, 24)),
    h("text", { x: x + 14, y: y + 45, class: "state" }, short(head, 34)),
    nodes.map((node, at) => h("text", { x: x + 14, y: y + 68 + at * LINE, class: "node" },
      `${node.is_running && node.state !== "not running" ? "●" : "○"} ${short(node.name, 18)} ${short(nodeState(node), 13)}`)));
}

const nodeState = (node) => (node.role === "follower" ? node.state : node.state === "running" && node.role !== "node" ? node.role : node.state);

function arrow(edge, byId, isWide) {
  const from = byId[edge.from], to = byId[edge.to];
  const [x1, y1] = isWide ? [from.x + BOX, from.y + Math.min(from.height, 66) / 2] : [from.x + BOX / 2, from.y + from.height];
  const [x2, y2] = isWide ? [to.x, to.y + Math.min(to.height, 66) / 2] : [to.x + BOX / 2, to.y];
  const isWell = edge.states.every((state) => state === "connected");
  const [tx, ty] = [(x1 + x2) / 2, (y1 + y2) / 2];
  const texts = [plural(edge.vhosts, "vhost"), isWell ? lag(edge) : short(edge.states.join(", "), 20)];
  const anchor = isWide ? { "text-anchor": "middle" } : {};
  return h("g", { class: isWell ? "link" : "link broken" },
    h("line", { x1, y1, x2, y2, "marker-end": "url(#arrow)" }),
    h("text", { x: isWide ? tx : tx + 12, y: isWide ? ty - 9 : ty - 3, ...anchor }, texts[0]),
    h("text", { x: isWide ? tx : tx + 12, y: isWide ? ty + 20 : ty + 14, ...anchor }, texts[1]));
}

const lag = (edge) => (edge.lag_ms === null ? "lag unknown" : edge.lag_ms === 0 ? "up to date" : `${duration(edge.lag_ms / 1000)} behind`);

function inWords(list, edges) {
  const parts = list.map((site) => `${site.site}: ${site.is_heard ? site.role : "not heard of"}`);
  return [...parts, ...edges.map((edge) => `${edge.to} follows ${edge.from}, ${edge.states.join(", ")}, ${lag(edge)}`)].join("; ");
}

// -- the cards ----------------------------------------------------------------------------------

function card(site, shown, again) {
  return h("section", { class: site.is_heard ? "card" : "card lost", key: site.site, "aria-label": site.site },
    h("h2", {}, site.site, h("small", {}, site.cluster_name && site.cluster_name !== site.site ? ` ${site.cluster_name}` : "")),
    h("p", { class: "state" }, heard(site)),
    site.warnings.length ? h("ul", { class: "notes" }, site.warnings.map((text) => h("li", {}, text))) : null,
    site.refused ? loginAt(site, again) : null,
    h("dl", {},
      facts([["role", site.role], ["product", site.product || "unknown"], ["user", site.heard_ms === null ? site.user : `${site.user} (${site.tags.join(", ") || "no tags"})`],
        ["queues", site.queues_age_ms !== null ? number(site.queues) : site.is_heard ? "being read" : "unknown"], ["messages", number(site.messages)]])),
    site.nodes.length ? h("table", { class: "grid nodes" },
      h("thead", {}, h("tr", {}, ["node", "role", "state"].map((text) => h("th", { scope: "col" }, text)), h("th", { class: "n", scope: "col" }, "up for"))),
      h("tbody", {}, site.nodes.map((node) => h("tr", { key: node.name },
        h("th", { scope: "row", class: "name", "data-label": "node" }, h("bdi", {}, node.name)), h("td", { "data-label": "role" }, node.role),
        h("td", { "data-label": "state" }, `${node.is_running ? "" : "✕ "}${node.state}${node.link ? `, link ${node.link}` : ""}${node.lag_s ? `, ${duration(node.lag_s)} behind` : ""}`),
        h("td", { class: "n", "data-label": "up for" }, node.uptime_ms === null ? "" : duration(node.uptime_ms / 1000)))))) : null,
    site.vhosts.length ? transfers(site) : null);
}

/** What a standby transfers: by which of its nodes, and how far it is behind each node of the upstream. */
function transfers(site) {
  const isCluster = site.vhosts.some((row) => row.node);
  const heads = ["virtual host", ...(isCluster ? ["node"] : []), "link"];
  return [
    h("table", { class: "grid transfers" },
      h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)), h("th", { class: "n", scope: "col" }, "behind"))),
      h("tbody", {}, site.vhosts.map((row) => [h("tr", { key: row.vhost, class: row.error ? "told" : null },
        h("th", { scope: "row", class: "name", "data-label": "virtual host" }, h("bdi", {}, row.vhost)),
        isCluster ? h("td", { "data-label": "node" }, owner(row)) : null,
        h("td", { "data-label": "link" }, h("div", {}, site.is_heard ? `${row.state === "connected" ? "" : "✕ "}${row.state}` : "✕ not heard of", logs(row, site))),
        h("td", { class: "n", "data-label": "behind" }, site.is_heard ? lag(row) : "unknown")),
      // The addresses that do not answer would make the columns narrow.
      row.error ? h("tr", { key: `${row.vhost} error` }, h("td", { colspan: String(heads.length + 1), class: "note" }, row.error)) : null]))),
    site.vhost_count > site.vhosts.length ? h("p", { class: "note" }, `${number(site.vhost_count - site.vhosts.length)} more virtual hosts do as well or better.`) : null,
  ];
}

const owner = (row) => (!row.node ? "✕ none" : !row.owner || row.owner === row.node ? row.node : `${row.node}, then ${row.owner}`);

function logs(row, site) {
  if (!row.logs.length || !site.is_heard) return null;
  return h("ul", { class: "logs" }, row.logs.map((each) => h("li", {}, `of ${each.node}: `, each.state,
    each.lag_records ? `, ${plural(each.lag_records, "record")} behind` : "")));
}

const facts = (pairs) => pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));

function heard(site) {
  if (site.refused) return `✕ The site does not serve this user: ${site.refused}`;
  if (site.is_heard) return `✓ alive, heard since ${clock(site.alive_since_ms ?? site.heard_ms)}`;
  if (site.heard_ms === null) return `? not heard of yet: ${site.error || "no answer so far"}`;
  return `✕ not heard of since ${day(site.heard_ms)} (${duration(site.age_ms / 1000)}): ${site.error}. What is shown is of then.`;
}

function loginAt(site, again) {
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target, told = form.querySelector(".trouble");
    try {
      await send("POST", `/session/sites/${encodeURIComponent(site.site)}`, { user: form.user.value, password: form.password.value });
      again();
    } catch (error) { told.textContent = error.message; }
  };
  return h("form", { class: "inline", onsubmit: submit },
    h("label", {}, "User", h("input", { name: "user", autocomplete: "off", required: true })),
    h("label", {}, "Password", h("input", { name: "password", type: "password", autocomplete: "off", required: true })),
    h("button", {}, `Log in at ${site.site}`), h("p", { class: "trouble", role: "alert" }));
}
