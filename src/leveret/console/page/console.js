// The page's frame: log-in, navigation, and one refresh after another.
import { h, render } from "/files/dom.js";
import { ask, send, takeBack, Failure } from "/files/server.js";
import { safety } from "/files/safety.js";
import { sites } from "/files/sites.js";
import { plots } from "/files/plots.js";
import { doing } from "/files/do.js";
import { past } from "/files/history.js";
import { letters } from "/files/messages.js";

const PAGES = { sites, safety, plots, do: doing, history: past, messages: letters };
const REFRESH_MS = 2500;
const top_ = document.getElementById("top"), main = document.getElementById("main");
const state = { session: null, timer: 0, turn: 0, trouble: "", isUsed: false };

const here = () => {
  const [name] = location.hash.slice(1).split("?");
  return name in PAGES ? name : "sites";
};

function frame() {
  if (state.session === null) return render(top_);
  const links = Object.entries(PAGES).map(([name, page]) =>
    h("a", { href: `#${name}`, "aria-current": name === here() ? "page" : null }, page.title));
  render(top_, h("header", {},
    h("strong", { class: "brand" }, "Leveret"),
    h("nav", { "aria-label": "Pages" }, links),
    h("span", { class: "who" }, state.session.user, h("button", { class: "plain", onclick: logOut }, "Log out"))),
  h("p", { class: "trouble", role: "status", hidden: !state.trouble }, state.trouble));
}

async function refresh() {
  clearTimeout(state.timer);
  const turn = ++state.turn;
  const page = PAGES[here()];
  try {
    const shown = await page.load(refresh);
    if (turn !== state.turn) return;
    state.trouble = "";
    render(main, shown);
  } catch (error) {
    if (turn !== state.turn) return;
    if (error instanceof Failure && error.status === 401) return leave("The session has ended.");
    // What is on the page stays, and is said to be old.
    state.trouble = error instanceof Failure ? `${error.message} What is shown below may be old.`
      : "This page has a fault, and cannot show a site's answer. What is shown below may be old.";
    if (!(error instanceof Failure)) setTimeout(() => { throw error; });
  }
  frame();
  state.timer = setTimeout(refresh, page.refresh_ms ?? REFRESH_MS);
}

function showLogin(text = "") {
  clearTimeout(state.timer);
  state.turn += 1;
  state.session = null;
  frame();
  render(main, h("form", { class: "login", key: "login", onsubmit: logIn },
    h("h1", {}, "Leveret"),
    h("p", {}, "Log in as a user that a site knows, with the tag monitoring or administrator."),
    h("label", {}, "User", h("input", { name: "user", autocomplete: "username", required: true, autofocus: true, spellcheck: "false", autocapitalize: "none" })),
    h("label", {}, "Password", h("input", { name: "password", type: "password", autocomplete: "current-password", required: true })),
    h("button", {}, "Log in"),
    h("p", { class: "trouble", role: "alert" }, text)));
  main.querySelector("input").focus();
}

async function logIn(event) {
  event.preventDefault();
  const form = event.target, button = form.querySelector("button"), told = form.querySelector(".trouble");
  button.disabled = true;
  told.textContent = "";
  try {
    const session = await send("POST", "/session", { user: form.user.value, password: form.password.value });
    if (state.isUsed) return location.reload();
    await begin(session);
  } catch (error) {
    told.textContent = error.message;
    form.password.value = "";
    form.password.focus();
  } finally { button.disabled = false; }
}

async function logOut() {
  // A refresh that is on its way would be refused once the session has ended, or would draw the page again.
  clearTimeout(state.timer);
  state.turn += 1;
  state.session = null;
  takeBack();
  try { await send("DELETE", "/session"); } catch { return showLogin("The console does not answer. The session ends half an hour after its last page is closed."); }
  leave("You are logged out.");
}

// The page begins anew: what a user has seen, messages too, is in no script that the next one uses.
function leave(text) {
  takeBack();
  history.replaceState({ text }, "");
  location.reload();
}

async function begin(session) {
  if (session.user === null) {
    showLogin(history.state?.text);
    return history.replaceState(null, "");
  }
  [state.session, state.isUsed] = [session, true];
  render(main);
  frame();
  await refresh();
}

window.addEventListener("hashchange", () => {
  if (state.session === null) return;
  render(main);
  frame();
  refresh();
  main.focus();
});
document.addEventListener("visibilitychange", () => {
  if (state.session !== null && document.visibilityState === "visible") refresh();
});

ask("/session").then(begin).catch((error) => showLogin(error.message));
