// History: what happened, newest first, by what the sites keep.
import { h } from "/files/dom.js";
import { ask } from "/files/server.js";
import { day, duration, number } from "/files/words.js";

const KINDS = { start: "▸", promotion: "▲", divergent: "◐", conflict: "✕", definitions: "·", rehearsal: "✓", recovery_into: "→", rejoin: "↩", fail_over: "▲", queues_led_on: "▲" };
const COLUMNS = [["site", ""], ["virtual_host", ""], ["message_count", "n"], ["first_timestamp", ""], ["last_timestamp", ""]];

export const past = { title: "History", load, refresh_ms: 10_000 };

async function load() {
  const shown = await ask("/history");
  return [
    h("h1", {}, "History"),
    shown.silent.length ? h("ul", { class: "notes" }, shown.silent.map((text) => h("li", {}, text))) : null,
    shown.rehearsals.length ? h("section", { "aria-label": "Rehearsals" }, h("h2", {}, "Rehearsals"),
      h("ul", {}, shown.rehearsals.map((each) => h("li", {}, h("b", {}, each.site), ` ${each.is_good ? "✓" : "▲"} `,
        each.at_ms === null ? "" : `${duration((shown.now_ms - each.at_ms) / 1000)} ago. `, each.text)))) : null,
    shown.recovered.length ? h("section", { "aria-label": "Recovered by promotions" }, h("h2", {}, "Recovered by promotions"), recovered(shown.recovered)) : null,
    h("h2", {}, "What happened"),
    shown.events.length ? h("ol", { class: "line" }, shown.events.map(event)) : h("p", { class: "note" }, "The sites report nothing."),
  ];
}

function event(each) {
  return h("li", { key: `${each.at_ms} ${each.site} ${each.text}` },
    h("time", {}, day(each.at_ms)), h("b", {}, each.site), ` ${KINDS[each.kind] ?? ""} ${each.text} `,
    each.report ? h("a", { href: `#messages?${new URLSearchParams({ site: each.site, source: "divergent", report: each.report })}` }, "Look at them") : null,
    each.report ? [" ", h("a", { href: `/divergent?${new URLSearchParams({ site: each.site, report: each.report })}`, download: "" }, "Export them")] : null,
    each.details.length ? h("ul", {}, each.details.map((text) => h("li", {}, h("bdi", {}, text)))) : null);
}

function recovered(rows) {
  return h("table", { class: "grid wide" },
    h("thead", {}, h("tr", {}, COLUMNS.map(([name, kind]) => h("th", { scope: "col", class: kind || null }, name.replaceAll("_", " "))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, COLUMNS.map(([name, kind]) =>
      h("td", { class: kind || null, "data-label": name.replaceAll("_", " ") }, kind ? number(row[name]) : String(row[name] ?? "–")))))));
}
