// Do: what a site can be told to do, what will happen in numbers before it does, and the jobs that were begun.
import { h } from "/files/dom.js";
import { ask, send } from "/files/server.js";
import { bytes, clock, day, duration, isTime, moment, number } from "/files/words.js";

const ROWS_MAX = 500;
const SELDOM = ["in_doubt", "reader_offsets", "clamped_offsets", "publisher_ids", "unreadable_records", "missing_records", "missing_messages"];
// Of the form that is open: which one, what went wrong, which moments the site knows, and the preview that was asked for.
let open_ = "", trouble = "", kept = null, preview = null, slid = "", jobs = [], copied = null;

export const doing = { title: "Do", load };

async function load(again) {
  const shown = await ask("/jobs");
  jobs = shown.jobs;
  // The preview stands in its form, and not among the jobs above, which would push the form down.
  const isOpen = shown.sites.some((site) => site.actions.some((action) => `${site.site} ${action.name}` === open_));
  const listed = jobs.filter((each) => !isOpen || each.number !== preview), newest = listed.find((each) => each.ended_ms !== null);
  return [
    h("h1", {}, "Do"),
    shown.promotions.map(promotion),
    shown.operations.length ? h("section", { "aria-label": "At the sites", key: "operations" }, shown.operations.map(operation)) : null,
    listed.length ? h("section", { "aria-label": "Jobs", key: "jobs" }, h("h2", {}, "Jobs"), listed.map((each) => job(each, shown.now_ms, each === newest))) : null,
    shown.sites.length ? null : h("p", { class: "note" }, "No site offers this user an operation: the user needs the tag administrator."),
    shown.sites.map((site) => h("section", { class: "card actions", key: site.site, "aria-label": site.site },
      h("h2", {}, site.site, h("small", {}, site.role ? ` ${site.role}` : "")),
      site.is_heard ? null : h("p", { class: "note" }, "The site does not answer: it offers no operation now."),
      site.actions.map((action) => choice(site.site, action, again)))),
  ];
}

function choice(site, action, again) {
  const id = `${site} ${action.name}`, isOpen = open_ === id;
  const toggle = () => {
    open_ = isOpen ? "" : id;
    [trouble, kept, preview, slid] = ["", null, null, ""];
    if (!isOpen && action.options.some((option) => option.kind === "moment" && option.name === "as_of")) askMoments(site, id, again);
    again();
  };
  return h("div", { class: "action", key: id },
    h("button", { "aria-expanded": String(isOpen), onclick: toggle }, action.title, isOpen ? "" : " …"),
    isOpen ? form(site, action, again) : null);
}

async function askMoments(site, id, again) {
  try {
    const { vhosts } = await ask("/moments", { site });
    if (open_ !== id) return;
    kept = spanOf(Math.min(...vhosts.map((row) => row.earliest_ms)), Math.max(...vhosts.map((row) => row.newest_ms)));
    again();
  } catch { /* Without a slider the moment can still be typed. */ }
}

const spanOf = (from, to) => (isTime(from) && isTime(to) ? { from, to } : null);

const chosen = (fields, options) => Object.fromEntries(options.filter((option) => fields[option.name]).map((option) =>
  [option.name, option.kind === "flag" ? fields[option.name].checked : fields[option.name].value]));

function form(site, action, again) {
  const submit = async (event) => {
    event.preventDefault();
    const fields = event.target.elements, given = chosen(fields, action.options);
    try {
      await send("POST", "/jobs", { site, action: action.name, given, word: action.is_final ? fields["typed-word"].value : "" });
      [open_, trouble] = ["", ""];
    } catch (error) { trouble = error.message; }
    again();
  };
  return h("form", { class: "job", onsubmit: submit, autocomplete: "off" },
    h("ul", { class: "forecast" }, action.forecast.map((text) => h("li", {}, text))),
    action.options.map((option) => (option.kind === "moment" ? asOf(site, action, option, again) : field(option))),
    action.is_final ? h("label", { class: "word" }, h("span", {}, "This cannot be taken back. Type ", h("code", {}, site), " to do it."), h("input", { name: "typed-word", required: true, pattern: escaped(site), spellcheck: "false" })) : null,
    h("p", {}, h("button", { class: "main" }, action.title)),
    h("p", { class: "trouble", role: "alert" }, trouble));
}

const escaped = (text) => text.replace(/[.\-]/g, "\\$&");

/** A moment of the kept history: to be typed, or found with a slider, and what the queues held then. */
function asOf(site, action, option, again) {
  const slide = (event) => {
    slid = new Date(Math.round(Number(event.target.value))).toISOString();
    event.target.form.elements[option.name].value = slid;
    event.target.setAttribute("aria-valuetext", slid);
  };
  const look = async (event) => {
    const fields = event.target.form.elements;
    // What a dry run has no option for, the recovery itself asks for.
    const given = chosen(fields, action.options.filter((each) => action.preview_options.includes(each.name)));
    try {
      preview = (await send("POST", "/jobs", { site, action: action.preview, given })).number;
      trouble = "";
    } catch (error) { trouble = error.message; }
    again();
  };
  const found = jobs.find((each) => each.number === preview);
  const span = option.span ? spanOf(...option.span) : kept;
  return h("fieldset", { class: "moment", key: option.name },
    h("legend", {}, option.label),
    field({ ...option, label: option.name === "as_of" ? "Moment; empty is now" : "Moment" }),
    span && span.to > span.from ? h("label", {}, `Kept history: ${moment(span.from)} to ${moment(span.to)}`,
      h("input", { type: "range", name: "slider", min: String(span.from), max: String(span.to), step: "any", value: String(span.to), "aria-valuetext": slid || null, oninput: slide })) : null,
    action.preview ? h("p", {}, h("button", { type: "button", onclick: look }, action.preview === "dry_run" ? "Preview by queue" : "Preview")) : null,
    found ? h("div", { class: "preview", role: "status" }, found.ended_ms === null ? h("p", { class: "note" }, `▸ ${found.step}`) : null, outcome(found)) : null);
}

function field(option) {
  if (option.kind === "flag") return h("label", { class: "flag" }, h("input", { type: "checkbox", name: option.name }), ` ${option.label}`);
  const label = option.kind === "names" ? `${option.label}, separated by commas` : option.label;
  return h("label", {}, label, h("input", { name: option.name, type: option.kind === "password" ? "password" : "text", required: option.is_needed, spellcheck: "false", maxlength: "2000" }));
}

/** A promotion as its site reports it, whoever began it, and wherever. */
function promotion(found) {
  const vhosts = rowsOf(found.vhosts) ?? [];
  const left = vhosts.reduce((sum, row) => sum + row.messages_left, 0), all = vhosts.reduce((sum, row) => sum + row.messages, 0);
  const told = found.is_running ? `Site ${found.site} is being promoted since ${day(found.begun_ms)}: ${found.step ?? ""}` : `The promotion of site ${found.site}, begun ${day(found.begun_ms)}, was interrupted. Promote again to go on with it.`;
  return h("section", { class: "notes", key: `promotion ${found.site}`, "aria-label": `Promotion of ${found.site}` },
    h("p", {}, told), found.error ? h("p", {}, found.error) : null,
    all ? bar(all - left, all, null) : null);
}

/** What a site does for somebody, as the site reports it: begun elsewhere, or in another console. */
function operation(each) {
  return h("article", { class: "card", key: `at ${each.site} ${each.kind} ${each.begun_ms}`, "aria-label": `${each.title} at ${each.site}` },
    h("h3", {}, `${each.title} at ${each.site} `, h("small", {}, `▸ ${each.step}`)),
    h("p", { class: "note" }, `Begun by ${each.by} at ${clock(each.begun_ms)}, not in this console`),
    each.total ? bar(each.done, each.total, each.seconds_left) : null);
}

function bar(done, total, left, unit = "messages") {
  const shown_ = unit === "octets" ? bytes : number;
  return h("p", { class: "progress" }, h("progress", { max: String(total), value: String(done), "aria-label": unit }),
    ` ${shown_(done)} of ${shown_(total)}${unit === "octets" ? "" : " messages"}${left === null ? "" : `, ${duration(left)} left`}`);
}

/** A job; of the results of those that ended, the newest is open. */
function job(each, now, isNewest) {
  const runs = each.ended_ms === null;
  const how = runs ? `▸ ${each.step}` : each.error ? "✕ failed" : "✓ done";
  const asked = Object.entries(each.chosen).map(([name, value]) => (value === true ? name : `${name}: ${value}`)).join("; ");
  return h("article", { class: "card", key: `job ${each.number}`, "aria-label": `${each.title} at ${each.site}` },
    h("h3", {}, `${each.title} at ${each.site} `, h("small", {}, how)),
    h("p", { class: "note" }, `Begun by ${each.begun_by} at ${clock(each.begun_ms)}, ${runs ? `${duration((now - each.begun_ms) / 1000)} ago` : `took ${duration((each.ended_ms - each.begun_ms) / 1000)}`}${asked ? `. ${asked}` : ""}`),
    runs || each.error ? outcome(each) : h("details", { open: isNewest }, h("summary", {}, "Result"), outcome(each)));
}

/** How far a job is, and what it ended with. */
function outcome(each) {
  const runs = each.ended_ms === null;
  return [
    runs && each.total ? bar(each.done, each.total, each.seconds_left, each.unit) : null,
    each.error ? h("p", { class: "trouble" }, each.error) : null,
    !runs && !each.error ? result(each.result, each.number) : null,
  ];
}

/** The rows of a list of objects; what else a site puts into it is left out. */
const rowsOf = (value) => (Array.isArray(value) ? value.filter((row) => row !== null && typeof row === "object" && !Array.isArray(row)) : null);

/** What a job ended with: numbers in a line, lists as tables. */
function result(found, job_) {
  const parts = Array.isArray(found) || typeof found !== "object" ? { "": found } : found ?? {};
  const entries = Object.entries(parts);
  const plain = entries.filter(([, value]) => value === null || typeof value !== "object");
  const lists = entries.map(([name, value]) => [name, rowsOf(value)]).filter(([, rows]) => rows?.length);
  const nested = entries.filter(([, value]) => value !== null && typeof value === "object" && !Array.isArray(value));
  return [
    plain.length ? h("dl", {}, plain.map(([name, value]) => h("div", {}, h("dt", {}, words(name)), h("dd", {}, shown(value, name))))) : null,
    nested.map(([name, value]) => h("dl", {}, Object.entries(value).map(([key, each]) => h("div", {}, h("dt", {}, `${words(name)} ${words(key)}`), h("dd", {}, shown(each, key)))))),
    lists.map(([name, rows]) => table(words(name), rows, `${job_} ${name}`)),
    entries.length ? null : h("p", {}, "The site had nothing to report."),
  ];
}

function table(name, rows, id) {
  const all = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((column) => rows.some((row) => row[column] !== null && typeof row[column] !== "object"));
  // What is nothing in every row is in the copied text only.
  const columns = all.filter((column) => !SELDOM.includes(column) || rows.some((row) => row[column]));
  const isNumber = Object.fromEntries(columns.map((column) => [column, rows.every((row) => row[column] === null || typeof row[column] === "number")]));
  const copy = async (event) => {
    const button = event.target, lines = [all, ...rows.map((row) => all.map((column) => cell(row[column])))];
    try {
      await navigator.clipboard.writeText(lines.map((line) => line.join("\t")).join("\n"));
      copied = { id, told: "Copied" };
    } catch { copied = { id, told: "The browser lets nothing be copied" }; }
    button.textContent = copied.told;
  };
  return h("div", { class: "result" },
    h("p", {}, name ? h("b", {}, `${name} `) : null, h("button", { class: "plain", type: "button", onclick: copy, "aria-live": "polite" }, copied?.id === id ? copied.told : "Copy as text")),
    h("table", { class: "grid wide" },
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: isNumber[column] ? "n" : null }, words(column))))),
      h("tbody", {}, rows.slice(0, ROWS_MAX).map((row) => h("tr", {}, columns.map((column) =>
        h("td", { class: isNumber[column] ? "n" : null, "data-label": words(column) }, h("bdi", {}, shown(row[column], column)))))))),
    rows.length > ROWS_MAX ? h("p", { class: "note" }, `${number(rows.length - ROWS_MAX)} more rows are in the copied text.`) : null);
}

/** A value in a line of a table that is copied: a name may hold what parts cells and lines. */
const cell = (value) => String(value ?? "").replace(/[\t\r\n]/g, " ");

const CALLED = { recovered_s: "time to recover", compared_s: "time to compare" };
const words = (name) => CALLED[name] ?? name.replace(/_(ms|s)$/, "").replaceAll("_", " ");

function shown(value, name = "") {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return value === true ? "yes" : value === false ? "no" : String(value);
  if (value > 1e12 && /timestamp|_at_ms$/.test(name)) return day(value);
  if (/_ms$/.test(name)) return duration(value / 1000);
  return /_s$/.test(name) ? duration(value) : number(value);
}
