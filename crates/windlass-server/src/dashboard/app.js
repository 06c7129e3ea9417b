// Keeps pages up to date and adds keyboard shortcuts. Every page also works without this file.
"use strict";

(() => {
  const home = document.body.dataset.home;
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

  // On phones the navigation is wider than the window: scroll to the current page.
  const here = $(".side nav [aria-current]");
  if (here) here.closest("nav").scrollLeft = here.offsetLeft - innerWidth / 3;

  // Times: tooltips and clocks in the local time zone.

  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const day = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric" });

  function localTimes(within) {
    for (const time of $$("time[datetime]", within)) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime()) || time.dataset.local) continue;
      time.dataset.local = "yes";
      if (time.title) time.title = `${exact.format(at)} · ${time.title}`;
      if (time.dataset.as === "clock") time.textContent = clock.format(at);
      if (time.dataset.as === "day") time.textContent = day.format(at);
    }
  }

  // Live updates: the server notifies the page when to update.

  const liveSwitch = $("#live-switch");
  let source = null;
  let looking = false;
  let again = false;

  const isPaused = () => sessionStorage.getItem("paused") === "yes";

  function showLive(state, text) {
    liveSwitch.dataset.state = state;
    liveSwitch.setAttribute("aria-pressed", String(!isPaused()));
    $(".live-text", liveSwitch).textContent = text;
  }

  // The element under the pressed pointer. Replacing it would lose the click.
  let pressed = null;
  addEventListener("pointerdown", (event) => { pressed = event.target; }, true);
  for (const end of ["pointerup", "pointercancel", "dragend"]) addEventListener(end, () => { pressed = null; }, true);

  // Whether a field differs from what the server sent, or is marked as invalid.
  function isInUse(field) {
    if (field.getAttribute("aria-invalid") === "true") return true;
    if (field.type === "checkbox") return field.checked;
    if (field.localName !== "select") return field.value !== field.defaultValue;
    const sent = [...field.options].find((option) => option.defaultSelected) ?? field.options[0];
    return Boolean(sent && !sent.selected);
  }

  // Whether the user is interacting with the element, so that it must not be replaced.
  function isBusy(element) {
    const focused = document.activeElement;
    if (element.contains(focused) && focused.matches("input:not([type=checkbox]), select, textarea")) return true;
    if (element.contains(pressed)) return true;
    if ($$("input, select, textarea", element).some(isInUse)) return true;
    const selection = getSelection();
    return Boolean(selection && !selection.isCollapsed && selection.anchorNode && element.contains(selection.anchorNode));
  }

  async function look() {
    if (!$("[data-live][id]")) return;
    if (looking) { again = true; return; }
    if ($("dialog[open]")) return;
    looking = true;
    try {
      const response = await fetch(location.href, { headers: { "x-windlass-live": "1" } });
      if (response.redirected) { location.reload(); return; }
      if (response.ok) replace(new DOMParser().parseFromString(await response.text(), "text/html"));
    } catch {
      // The server cannot be reached; the stream reports that as well.
    } finally {
      looking = false;
      if (again) { again = false; setTimeout(look, 250); }
    }
  }

  function replace(page) {
    for (const old of $$("[data-live][id]")) {
      // In a form with a field named `id`, `old.id` is that field.
      const fresh = page.getElementById(old.getAttribute("id"));
      if (!fresh || isBusy(old)) continue;
      localTimes(fresh);
      if (fresh.isEqualNode(unmarked(old))) continue;
      const focused = old.contains(document.activeElement) ? pathTo(document.activeElement) : null;
      const marked = $(".marked", old)?.dataset.key;
      const scrolled = $$(".scroll, pre", old).map((box) => [box.scrollLeft, box.scrollTop]);
      for (const details of $$("details[open][id]", old)) {
        const same = $(`#${CSS.escape(details.id)}`, fresh);
        if (same) same.open = true;
      }
      old.replaceWith(document.adoptNode(fresh));
      if (marked) $(`[data-key="${CSS.escape(marked)}"]`, fresh)?.classList.add("marked");
      $$(".scroll, pre", fresh).forEach((box, at) => { if (scrolled[at]) [box.scrollLeft, box.scrollTop] = scrolled[at]; });
      if (focused) $(focused, fresh)?.focus({ preventScroll: true });
    }
    watchSelections();
  }

  // The element as the server sent it, without the keyboard selection.
  function unmarked(element) {
    const copy = element.cloneNode(true);
    for (const row of $$(".marked", copy)) {
      row.classList.remove("marked");
      if (!row.classList.length) row.removeAttribute("class");
    }
    return copy;
  }

  // A selector for the focused element, to find it again in the replacement.
  function pathTo(element) {
    if (element.id) return `#${CSS.escape(element.id)}`;
    const by = (one, names) => names.filter((name) => one?.hasAttribute(name))
      .map((name) => `[${name}="${CSS.escape(one.getAttribute(name))}"]`).join("");
    const own = by(element, ["href", "name", "value", "formaction", "data-all"]);
    const row = by(element.closest("[data-key]"), ["data-key"]);
    const form = by(element.closest("form"), ["action"]);
    return [row, form, element.localName + own].filter(Boolean).join(" ");
  }

  function connect() {
    source?.close();
    source = null;
    if (isPaused()) { showLive("paused", "Paused"); return; }
    if (document.hidden) return;
    showLive("waiting", "Connecting");
    const own = new EventSource(`${home}/live`);
    source = own;
    own.addEventListener("open", () => showLive("live", "Live"));
    own.addEventListener("changed", look);
    own.addEventListener("tick", look);
    own.addEventListener("bye", (event) => {
      own.close();
      if (event.data === "wrong_token") { location.reload(); return; }
      showLive("broken", "Server stopping");
      setTimeout(() => { if (source === own) connect(); }, 3000);
    });
    own.addEventListener("error", () => {
      showLive("broken", "Reconnecting");
      // Browsers reconnect automatically, but not after an error status.
      if (own.readyState === EventSource.CLOSED) setTimeout(() => { if (source === own) { connect(); look(); } }, 5000);
    });
  }

  function toggleLive() {
    sessionStorage.setItem("paused", isPaused() ? "no" : "yes");
    connect();
    if (!isPaused()) look();
  }

  if (liveSwitch) {
    liveSwitch.hidden = false;
    liveSwitch.addEventListener("click", toggleLive);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { source?.close(); source = null; return; }
      connect();
      if (!isPaused()) look();
    });
    addEventListener("pagehide", () => source?.close());
    addEventListener("pageshow", (event) => { if (event.persisted) { connect(); look(); } });
    connect();
  }

  // Selections: the box in the header selects all rows, and the buttons show the number.

  function watchSelections() {
    for (const form of $$("form[data-select]")) {
      const boxes = $$("input[name=id]", form);
      const chosen = boxes.filter((box) => box.checked).length;
      const all = $("input[data-all]", form);
      if (all) {
        all.hidden = false;
        all.checked = chosen > 0 && chosen === boxes.length;
        all.indeterminate = chosen > 0 && chosen < boxes.length;
      }
      for (const count of $$("[data-chosen]", form)) count.textContent = chosen ? ` (${chosen})` : "";
      for (const button of $$("button[data-needs-choice]", form)) button.disabled = chosen === 0;
    }
  }

  document.addEventListener("change", (event) => {
    const form = event.target.closest?.("form[data-select]");
    if (!form) return;
    if (event.target.matches("input[data-all]")) {
      for (const box of $$("input[name=id]", form)) box.checked = event.target.checked;
    }
    watchSelections();
  });

  // Omit empty fields from the URL.

  for (const form of $$("form[data-filter]")) {
    form.addEventListener("formdata", (event) => {
      for (const [name, value] of [...event.formData]) if (!value) event.formData.delete(name);
    });
  }

  // Confirmation pages are shown as dialogs.

  const ask = $("#ask");

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("[data-ask]")) return;
    event.preventDefault();
    const button = event.submitter;
    const body = new URLSearchParams(new FormData(form));
    if (button?.name) body.append(button.name, button.value);
    const action = button?.getAttribute("formaction") || form.getAttribute("action");
    let page = null;
    try {
      const response = await fetch(action, { method: "POST", body });
      // The session has ended.
      if (response.redirected) { location.reload(); return; }
      page = new DOMParser().parseFromString(await response.text(), "text/html");
    } catch {
      page = null;
    }
    const question = page && $("#ask-content", page);
    if (question) {
      ask.replaceChildren(...document.adoptNode(question).childNodes);
      if (!ask.open) ask.showModal();
      return;
    }
    const sentence = page && $(".sentence, .field-error", page)?.textContent;
    notify("bad", sentence || "The server did not answer; nothing is known to have changed.");
  });

  // Ignore double clicks.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.getAttribute("method") !== "post") return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
  });
  addEventListener("pageshow", () => { for (const form of $$("form[data-sent]")) delete form.dataset.sent; });

  document.addEventListener("click", (event) => {
    const close = event.target.closest?.("[data-close]");
    if (close && ask.open && ask.contains(close)) { event.preventDefault(); ask.close(); }
    if (event.target === ask) ask.close();
    if (event.target.id === "help") event.target.close();
  });

  function notify(kind, text) {
    const notice = document.createElement("p");
    notice.className = `notice ${kind}`;
    notice.textContent = text;
    $("#notices").replaceChildren(notice);
    notice.scrollIntoView({ block: "nearest" });
  }

  // Keyboard shortcuts.

  const help = $("#help");
  let going = 0;

  const rows = () => $$("[data-key]");

  function move(by) {
    const all = rows();
    if (!all.length) return;
    const now = all.findIndex((row) => row.classList.contains("marked"));
    const next = all[now < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, now + by))];
    for (const row of all) row.classList.toggle("marked", row === next);
    next.scrollIntoView({ block: "nearest" });
  }

  const KEYS = {
    "/": () => { const field = $("[data-search]"); field?.focus(); field?.select(); },
    "?": () => { if (!help.open) help.showModal(); },
    j: () => move(1),
    k: () => move(-1),
    p: () => toggleLive(),
    x: () => { const box = $(".marked input[name=id]"); if (box) box.click(); },
    Enter: () => { const link = $(".marked a[data-open]"); if (link) link.click(); return Boolean(link); },
    Escape: () => { for (const row of $$(".marked")) row.classList.remove("marked"); for (const open of $$(".switch[open]")) open.open = false; },
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const field = event.target.closest?.("input:not([type=checkbox]), select, textarea");
    if (field) {
      if (event.key === "Escape") field.blur();
      return;
    }
    if ($("dialog[open]")) return;
    if (event.key === "g") { going = Date.now(); return; }
    const goes = Date.now() - going < 1500 && $(`[data-go="${CSS.escape(event.key)}"]`);
    going = 0;
    if (goes) { event.preventDefault(); goes.click(); return; }
    // The browser handles Enter on links and buttons. A dialog that was just closed keeps the focus until the next draw.
    const control = event.target.closest?.("a, button, summary");
    if (event.key === "Enter" && control && !control.closest("dialog")) return;
    const act = Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : null;
    if (act && act() !== false) event.preventDefault();
  });

  const helpOpen = $("#help-open");
  if (helpOpen) {
    helpOpen.hidden = false;
    helpOpen.addEventListener("click", KEYS["?"]);
  }

  localTimes(document);
  watchSelections();
})();
