// Plots of the last hour and day. A gap in a line is a time in which nothing was heard.
import { h } from "/files/dom.js";
import { ask } from "/files/server.js";
import { bytes, clock, day, duration, number } from "/files/words.js";

const WIDTH = 560, FRAME = 60, HEIGHT = 150, LEFT = 64, RIGHT = 12, TOP = 12, BOTTOM = 24;
const SPANS = { hour: 3600e3, day: 86400e3 };
const OLD_MS = { hour: 30e3, day: 3600e3 };
const PLOTS = [
  ["messages", "Messages in queues", (value) => number(Math.round(value))],
  ["publish_rate", "Published a second", (value) => number(Math.round(value * 10) / 10)],
  ["deliver_rate", "Delivered a second", (value) => number(Math.round(value * 10) / 10)],
  ["lag_s", "Lag behind the upstream", duration],
  ["lag_messages", "Records behind the upstream", (value) => number(Math.round(value))],
  ["disk_free", "Free disk space", bytes],
  ["logs_bytes", "Disk of queues and definitions", bytes],
  ["archive_bytes", "Disk of the archive", bytes],
  ["longest_step_ms", "Longest step of the event loop within a minute", (value) => `${number(Math.round(value))} ms`],
];
let span = "hour";

export const plots = { title: "Plots", load };

async function load(again) {
  const shown = await ask("/view/plots", { span });
  const choose = (name) => () => { span = name; again(); };
  return [
    h("h1", {}, "Plots"),
    h("div", { class: "chips", role: "group", "aria-label": "Span" }, Object.keys(SPANS).map((name) =>
      h("button", { class: "chip", "aria-pressed": String(span === name), onclick: choose(name) }, `last ${name}`))),
    h("p", { class: "note" }, "The nodes keep these numbers since their start. A gap in a line is a time without a report."),
    Object.entries(shown.sites).map(([site, kept]) => h("section", { key: site }, h("h2", {}, site), h("div", { class: "plots" },
      PLOTS.filter(([name]) => kept.series[name].length).map(([name, title, text]) => plot(title, kept.series[name], text, shown)),
      PLOTS.every(([name]) => !kept.series[name].length) ? h("p", { class: "note" }, "Nothing was heard of this site in this time.") : null))),
  ];
}

/** The newest value, and since when there is no newer one. */
function latest(runs, text, now) {
  const [ms, value] = runs.at(-1).at(-1);
  return now - ms > OLD_MS[span] ? `${text(value)} at ${span === "day" ? day(ms) : clock(ms)}` : text(value);
}

function plot(title, runs, text, { now_ms: now }) {
  const since = now - SPANS[span];
  const most = runs.flat().reduce((found, [, value]) => Math.max(found, value), 0);
  const [top, newest] = [nice(most, text === duration), latest(runs, text, now)];
  // A plot is drawn as wide as a phone, where it would be scaled down with its numbers.
  const width = Math.min(WIDTH, Math.max(280, document.getElementById("main").clientWidth - FRAME));
  const x = (ms) => LEFT + ((ms - since) / (now - since)) * (width - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const at = (ms) => (span === "day" ? day(ms) : clock(ms)).replace(/:\d\d$/, (end) => (span === "day" ? end : ""));
  return h("figure", { class: "plot", key: title },
    h("figcaption", {}, title, h("b", {}, newest)),
    h("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${newest}, at most ${text(most)}` },
      [0, 0.5, 1].map((part) => [
        h("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(top * part), y2: y(top * part) }),
        h("text", { class: "axis", x: LEFT - 8, y: y(top * part) + 4, "text-anchor": "end" }, text(top * part))]),
      [0, 0.5, 1].map((part) => h("text", { class: "axis", x: x(since + (now - since) * part), y: HEIGHT - 6, "text-anchor": ["start", "middle", "end"][part * 2] }, at(since + (now - since) * part))),
      runs.map((run) => (run.length === 1
        ? h("circle", { class: "dot", cx: x(run[0][0]), cy: y(run[0][1]), r: 2 })
        : h("polyline", { class: "run", points: run.map(([ms, value]) => `${x(ms).toFixed(1)},${y(value).toFixed(1)}`).join(" ") })))));
}

/** The next number that reads well, and whose half does; of seconds, in whole minutes or hours where they are said so. */
function nice(most, isTime) {
  if (isTime && most > 60) {
    const unit = most > 3600 ? 3600 : 60;
    return unit * nice(most / unit, false);
  }
  if (most <= 2) return 2;
  const unit = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 6, 8, 10].map((step) => step * unit).find((step) => step >= most);
}
