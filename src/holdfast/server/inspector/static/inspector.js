// Progressive enhancement of the pages. Every page works without this script, except for live updates.
//
// Attributes that it understands:
//   data-swap="ID ID"      link or form: load the target in the background and replace the elements with these ids
//   data-submit            form: submit it when a field changes
//   data-live="URL"        element: listen to server-sent events; each event reloads this element from the page's address
//   data-live-with="ID ID" next to data-live: also replace the elements with these ids
//   data-live-pill         next to data-live: first show a button with the number of new items, and reload when it is pressed
//   data-copy="ID"         button: copy the text of the element
//   data-time              time element: show the time in the reader's zone, with how long ago it was as its title
//   data-item              element: j and k move between these elements
//   data-key="x"           element: the key x focuses a field, or follows a link
//   class="menu"           details: Escape or a click outside closes it
//   data-stream="ID"       form: send it in the background and write the streamed text into the element; Enter in its text field sends it
//   data-then="ID ID"      next to data-stream: after the reply, replace the elements with these ids from the address in x-next
//   data-stop              button in such a form, shown while it streams: stop the reply
"use strict";

const byId = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// -- replacing parts of the page ---------------------------------------------

let loading = null;
let shown = location.pathname + location.search;

async function load(url, options, ids, push) {
  loading?.abort();
  const controller = (loading = new AbortController());
  document.documentElement.setAttribute("aria-busy", "true");
  try {
    const response = await fetch(url, { ...options, headers: { accept: "text/html" }, signal: controller.signal });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (page.querySelector("[data-error]")) {
      announce(page.querySelector("[data-error-message]")?.textContent ?? "Something went wrong");
      return false;
    }
    if (ids.some((id) => !page.getElementById(id))) {
      location.assign(response.url); // another page, such as the sign-in page
      return false;
    }
    replace(page, ids);
    if (push) history.pushState(null, "", clean(response.url));
    shown = location.pathname + location.search;
    return true;
  } catch (error) {
    if (error.name !== "AbortError") announce("The server cannot be reached.");
    return false;
  } finally {
    if (loading === controller) document.documentElement.removeAttribute("aria-busy");
  }
}

function replace(page, ids) {
  const active = document.activeElement;
  const focused = active?.closest("[id]")?.id;
  for (const id of ids) {
    const [old, fresh] = [byId(id), page.getElementById(id)];
    if (!old || !fresh) continue;
    const open = all("details[open][id]", old).map((one) => one.id);
    old.replaceWith(document.adoptNode(fresh));
    open.forEach((name) => byId(name)?.setAttribute("open", ""));
    enhance(byId(id));
  }
  if (focused && !active.isConnected) byId(focused)?.focus({ preventScroll: true });
}

function clean(address) {
  const url = new URL(address);
  url.searchParams.delete("notice");
  return url;
}

function announce(text) {
  let box = byId("announcement");
  if (!box) {
    box = document.createElement("p");
    box.id = "announcement";
    box.className = "error";
    box.setAttribute("role", "alert");
    byId("main")?.prepend(box);
  }
  box.textContent = text;
  box.scrollIntoView({ block: "nearest" });
}

function getAction(form) {
  return form.getAttribute("action") ?? ""; // `form.action` may be a field of the form
}

function query(form) {
  const fields = [...new FormData(form)].filter(([, value]) => typeof value === "string" && value !== "");
  const url = new URL(getAction(form), location);
  url.search = new URLSearchParams(fields);
  return url;
}

addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-swap]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  load(link.href, {}, link.dataset.swap.split(" "), true);
});

addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.stream !== undefined) {
    event.preventDefault();
    stream(form);
  } else if (form.dataset.swap) {
    event.preventDefault();
    const post = form.method === "post";
    const body = post ? new URLSearchParams([...new FormData(form, event.submitter)]) : undefined;
    load(post ? getAction(form) : query(form), { method: form.method.toUpperCase(), body }, form.dataset.swap.split(" "), !post);
  }
});

let typing = 0;
for (const type of ["input", "change"])
  addEventListener(type, (event) => {
    const form = event.target.form;
    if (!form || form.dataset.submit === undefined || (type === "input" && event.target.type !== "range")) return;
    clearTimeout(typing);
    typing = setTimeout(() => form.requestSubmit(), type === "input" ? 60 : 0);
  });

addEventListener("popstate", () => {
  if (location.pathname + location.search !== shown) location.reload(); // not for a jump within the page
});

// -- menus ----------------------------------------------------------------------

addEventListener("click", (event) => {
  for (const menu of all("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of all("details.menu[open]")) {
    const hadFocus = menu.contains(document.activeElement);
    menu.open = false;
    if (hadFocus) menu.querySelector("summary").focus();
  }
});

// -- live updates -------------------------------------------------------------

const sources = new Map();

function listen(element) {
  sources.get(element.id)?.close();
  if (document.hidden) return; // browsers open few connections to one server, and tabs in the background need none
  const source = new EventSource(element.dataset.live);
  sources.set(element.id, source);
  let news = 0;
  source.addEventListener("open", () => (news = 0)); // after an interruption, the server counts again
  source.addEventListener("message", (event) => {
    const here = byId(element.id);
    if (!here?.dataset.live) return source.close();
    news += Number(event.data) || 1;
    const ids = [element.id, ...(here.dataset.liveWith ?? "").split(" ").filter(Boolean)];
    if (here.dataset.livePill === undefined) {
      load(location.href, {}, ids, false);
    } else {
      showPill(here, news, async () => {
        news = 0;
        if (await load(location.href, {}, ids, false)) byId(element.id)?.lastElementChild?.scrollIntoView({ block: "end" });
      });
    }
  });
}

function showPill(element, count, reload) {
  let pill = byId(`${element.id}-pill`);
  if (!pill) {
    pill = document.createElement("button");
    pill.id = `${element.id}-pill`;
    pill.className = "pill";
    element.before(pill);
  }
  pill.textContent = `${count} new`;
  pill.onclick = () => {
    pill.remove();
    reload();
  };
}

addEventListener("pagehide", () => sources.forEach((source) => source.close()));
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return sources.forEach((source) => source.close());
  const lives = all("[data-live][id]");
  lives.forEach(listen);
  const stale = lives.filter(({ dataset }) => dataset.livePill === undefined).map(({ id }) => id);
  if (stale.length) load(location.href, {}, stale, false);
});

// -- streamed replies ---------------------------------------------------------

async function stream(form) {
  const controller = new AbortController();
  const [button, stop] = [form.querySelector("button"), form.querySelector("[data-stop]")];
  const ids = (form.dataset.then ?? "").split(" ").filter(Boolean);
  const target = byId(form.dataset.stream);
  let [next, problem] = [null, null];
  button.disabled = true;
  stop.hidden = false;
  stop.onclick = () => controller.abort();
  target.textContent = "";
  byId("announcement")?.remove();
  try {
    const body = new URLSearchParams([...new FormData(form)]);
    const response = await fetch(getAction(form), { method: "POST", body, headers: { accept: "text/event-stream" }, signal: controller.signal });
    next = response.headers.get("x-next");
    if (!next) {
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      problem = page.querySelector("[data-error-message]")?.textContent ?? "Something went wrong";
    } else {
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
        const [words, mistake] = problem === null ? value.split("\u001e") : ["", value]; // what follows this character is an error
        target.append(words);
        if (mistake !== undefined) problem = (problem ?? "") + mistake;
      }
    }
  } catch (error) {
    if (error.name === "AbortError") await new Promise((resolve) => setTimeout(resolve, 300)); // until the server has stored the part
    else problem = "The reply broke off.";
  }
  if (next && (await load(next, {}, ids, false))) {
    history.replaceState(null, "", clean(new URL(next, location)));
    shown = location.pathname + location.search;
    form.reset();
  }
  if (problem) announce(problem);
  button.disabled = false;
  stop.hidden = true;
  form.querySelector("textarea")?.focus({ preventScroll: true });
}

// -- copying, files, times ----------------------------------------------------

addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(byId(button.dataset.copy).textContent);
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
  } catch {
    getSelection().selectAllChildren(byId(button.dataset.copy)); // no access to the clipboard: select it instead
  }
});

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

function showTime(element) {
  const time = new Date(element.dateTime);
  const seconds = (time - Date.now()) / 1000;
  const [unit, size] = [["day", 86400], ["hour", 3600], ["minute", 60]].find(([, length]) => Math.abs(seconds) >= length) ?? ["second", 1];
  const ago = relative.format(Math.round(seconds / size), unit);
  const exact = time.toLocaleString("sv-SE");
  element.textContent = Math.abs(seconds) < 30 * 86400 ? ago : exact.slice(0, 16);
  element.title = `${exact} (${ago})`;
}

// -- keyboard -----------------------------------------------------------------

function move(step) {
  const items = all("[data-item]");
  if (!items.length) return;
  const now = items.findIndex((item) => item === document.activeElement || item.contains(document.activeElement));
  const next = items[Math.max(0, Math.min(items.length - 1, now + step))];
  next.tabIndex = -1;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function openDialog(id, html) {
  const dialog = byId(id) ?? document.body.appendChild(Object.assign(document.createElement("dialog"), { id, innerHTML: html }));
  dialog.showModal();
  return dialog;
}

function openPalette() {
  const [field, list] = openDialog("palette", '<input aria-label="Go to a page" placeholder="Go to a page"><ul></ul>').children;
  list.replaceChildren();
  for (const { href, textContent } of all(".side a, .tabs a"))
    list.appendChild(document.createElement("li")).append(Object.assign(document.createElement("a"), { href, textContent }));
  field.value = "";
  field.oninput = () => all("li", list).forEach((item) => (item.hidden = !item.textContent.toLowerCase().includes(field.value.toLowerCase())));
  field.onkeydown = (event) => {
    if (event.key === "Enter") all("li:not([hidden]) a", list)[0]?.click();
  };
  field.focus();
}

function openHelp() {
  const keys = [["/", "search"], ["j, k", "next and previous item"], ["n", "next page"], ["Ctrl K", "go to a page"], ["Esc", "close"]];
  openDialog("help", `<h2>Keys</h2><ul>${keys.map(([key, about]) => `<li><kbd>${key}</kbd> ${about}</li>`).join("")}</ul>`);
}

addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    return openPalette();
  }
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target.matches?.("[data-stream] textarea")) {
    event.preventDefault();
    if (!event.target.form.querySelector("button").disabled) event.target.form.requestSubmit();
  }
  const isTyping = event.target.matches?.("input, textarea, select, [contenteditable]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "j") return move(1);
  if (event.key === "k") return move(-1);
  if (event.key === "?") return openHelp();
  const target = all("[data-key]").find((one) => one.dataset.key === event.key);
  if (!target) return;
  event.preventDefault();
  if (target.matches("a, button")) target.click();
  else target.focus();
});

// -- start ---------------------------------------------------------------------

function enhance(root) {
  all("[data-time]", root).forEach(showTime);
  all("[data-copy]", root).forEach((button) => (button.hidden = false));
  all("[data-script]", root).forEach((one) => (one.hidden = false));
  all("[data-no-script]", root).forEach((one) => (one.hidden = true));
  const lives = all("[data-live]", root);
  if (root.dataset?.live) lives.push(root);
  const isFollowed = ({ id, dataset }) => sources.get(id)?.readyState < 2 && sources.get(id).url === new URL(dataset.live, location).href;
  lives.filter((one) => one.id && !isFollowed(one)).forEach(listen);
}

enhance(document.documentElement);
const address = clean(location.href);
if (address.href !== location.href) history.replaceState(null, "", address);
shown = location.pathname + location.search;
