// Numbers, ages and dangers as people read them. Each danger has a sign and a word: no meaning is in a colour alone.

const NUMBER = new Intl.NumberFormat("en");
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", hour12: false });

const MOMENT = new Intl.DateTimeFormat(undefined, { month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

export const DANGERS = {
  down: { sign: "✕", word: "down", tone: "bad", means: "No application reaches the queue." },
  one_copy: { sign: "▲", word: "one copy", tone: "bad", means: "The loss of one machine loses everything." },
  not_heard: { sign: "?", word: "not heard", tone: "bad", means: "The site does not answer: the row shows its last report." },
  behind: { sign: "◐", word: "behind", tone: "warn", means: "There are copies, and no required one is complete." },
  one_site: { sign: "◇", word: "one site", tone: "warn", means: "A machine may be lost, the site may not." },
  safe: { sign: "✓", word: "safe", tone: "good", means: "A machine or the site may be lost." },
  by_design: { sign: "–", word: "by design", tone: "calm", means: "Exclusive and transient queues are not kept." },
};

export const number = (value) => (value === null || value === undefined ? "unknown" : NUMBER.format(value));

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "unknown";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${value < 10 && at ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

/** Whether a number is a time at all: a site may report any number. */
export const isTime = (ms) => typeof ms === "number" && Math.abs(ms) <= 8.64e15;
export const clock = (ms) => (ms === null || ms === undefined ? "never" : isTime(ms) ? CLOCK.format(new Date(ms)) : "unknown");
export const day = (ms) => (isTime(ms) ? DAY.format(new Date(ms)) : "unknown");
/** A time with its seconds. */
export const moment = (ms) => (isTime(ms) ? MOMENT.format(new Date(ms)) : "unknown");
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
export const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** What would be lost of `whole` messages. */
export function loss(lost, whole) {
  if (lost.messages === 0) return "nothing";
  const age = lost.seconds === null ? "" : `, last ${duration(lost.seconds)}`;
  if (lost.messages === null) return `an unknown number${age}`;
  return typeof whole === "number" && lost.messages >= whole && lost.seconds === null
    ? `all ${number(lost.messages)}` : `up to ${number(lost.messages)}${age}`;
}
