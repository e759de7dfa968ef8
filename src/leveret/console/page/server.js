// Requests to the console, and to nobody else.

export class Failure extends Error {
  constructor(status, reason) { super(reason); this.status = status; }
}

let asked = new AbortController();

// Take back every question that is not answered: its answer belongs to a session that ends.
export function takeBack() {
  asked.abort();
  asked = new AbortController();
}

export async function ask(path, query = {}) {
  const chosen = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(chosen).toString();
  return answered(fetch(text ? `${path}?${text}` : path, { signal: asked.signal }));
}

let isReading = false;

// A view of what is known. After a log-in sites are read within a second: then the console is asked once more, and
// answers as soon as they were.
export async function askRead(path, query, again) {
  const shown = await ask(path, { ...query, wait: isReading ? "yes" : "" });
  isReading = shown.is_reading;
  if (isReading) setTimeout(again);
  return shown;
}

export async function send(method, path, body = {}) {
  const headers = { "content-type": "application/json" };
  return answered(fetch(path, { method, headers, body: JSON.stringify(body) }));
}

async function answered(request) {
  let response;
  try { response = await request; } catch { throw new Failure(0, "The console does not answer."); }
  let document = {};
  try { document = await response.json(); } catch { /* a status without a document */ }
  if (!response.ok) throw new Failure(response.status, document.error ?? `The console answers ${response.status}.`);
  return document;
}
