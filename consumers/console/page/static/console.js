// Keeps a page up to date: takes the parts that changed, moves the clocks, and lets a person pause, look back, filter and use keys.
// Text of calls reaches the page only as markup that the server has escaped.
"use strict";
(() => {
  const LOST_MS = 12000;
  const policy = window.trustedTypes
    ? trustedTypes.createPolicy("callgauge", { createHTML: (markup) => markup })
    : { createHTML: (markup) => markup };
  const body = document.body;
  const link = document.getElementById("link");
  const pauseButton = document.getElementById("pause");
  let source = null;
  let lastId = "";
  let heardAt = 0;
  let skewMs = 0;
  let isPaused = false;
  let isBack = false;
  let chosen = null;
  let streamAddress = body.dataset.stream;

  const element = (markup) => {
    const template = document.createElement("template");
    template.innerHTML = policy.createHTML(markup);
    return template.content.firstElementChild;
  };

  // What a person has opened stays open: the server does not know of it.
  const callbacks = { beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS") };
  // A row changes cell by cell, and a cell with a clock only gets another time: a fifth of them change every second.
  const morphRow = (there, fresh) => {
    there.className = fresh.className;
    const cells = [...fresh.cells];
    [...there.cells].forEach((cell, at) => {
      const clock = cell.querySelector("time"), other = cells[at].querySelector("time");
      if (clock && other) clock.dataset.since = other.dataset.since;
      else if (!cell.isEqualNode(cells[at])) cell.replaceWith(cells[at]);
    });
  };
  const morph = (there, fresh) => {
    if (there.tagName === "TR") morphRow(there, fresh);
    else Idiomorph.morph(there, fresh, { morphStyle: "outerHTML", restoreFocus: true, callbacks });
  };
  const take = (news) => {
    const fresh = new Map();
    // A drawing that is seen up to its end goes on being seen so while it grows.
    const atEnd = [...document.querySelectorAll(".timeline .scroll")].filter(
      (box) => box.scrollLeft + box.clientWidth >= box.scrollWidth - 2);
    for (const [id, markup] of Object.entries(news.parts)) {
      const there = document.getElementById(id);
      if (there) morph(there, element(markup));
      else fresh.set(id, markup);
    }
    for (const [box, ids] of Object.entries(news.order)) {
      const container = document.getElementById(box);
      if (!container) continue;
      const wanted = new Set(ids);
      for (const child of [...container.children]) if (!wanted.has(child.id)) child.remove();
      let next = container.firstElementChild;
      for (const id of ids) {
        const child = document.getElementById(id) || element(fresh.get(id) || "");
        if (!child) continue;
        if (child === next) next = next.nextElementSibling;
        else container.insertBefore(child, next);
      }
    }
    for (const box of atEnd) box.scrollLeft = box.scrollWidth;
    if (news.last_ms) spanTo(news.last_ms);
    tick();
    mark();
  };

  // Clocks: how long ago something was, by the server's time.
  const inWords = (ms) => {
    const seconds = Math.max(0, Math.floor(ms / 1000));
    const minutes = Math.floor(seconds / 60);
    const two = (number) => String(number).padStart(2, "0");
    if (minutes >= 60) return `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(seconds % 60)}`;
    return `${minutes}:${two(seconds % 60)}`;
  };
  const tick = () => {
    const now = Date.now() + skewMs;
    for (const clock of document.querySelectorAll("time[data-since]")) {
      const text = inWords(now - Number(clock.dataset.since));
      if (clock.textContent !== text) clock.textContent = text;
    }
    if (!link || isPaused || isBack) return;
    const isLost = !source || source.readyState !== EventSource.OPEN || performance.now() - heardAt > LOST_MS;
    say(isLost ? "connection lost" : "live", isLost ? "lost" : "live");
  };
  const say = (text, state) => {
    if (link.textContent !== text) link.textContent = text;
    link.className = state;
  };

  // The stream.
  const connect = () => {
    if (source) source.close();
    const address = new URL(streamAddress, location.href);
    if (lastId) address.searchParams.set("since", lastId);
    source = new EventSource(address);
    const heard = () => { heardAt = performance.now(); };
    source.addEventListener("open", heard);
    source.addEventListener("clock", (event) => {
      heard();
      skewMs = JSON.parse(event.data).now - Date.now();
    });
    source.addEventListener("beat", heard);
    source.addEventListener("message", (event) => {
      heard();
      lastId = event.lastEventId;
      take(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      tick();
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { if (!isPaused && !isBack) connect(); }, 5000);
    });
  };
  const pause = (wanted) => {
    isPaused = wanted;
    pauseButton.setAttribute("aria-pressed", String(wanted));
    pauseButton.textContent = wanted ? "Resume" : "Pause";
    if (wanted) { source.close(); say("paused", "paused"); } else if (!isBack) connect();
  };

  // Looking back: what was known of a call at a moment.
  const slider = document.getElementById("at");
  const output = document.getElementById("at-text");
  const nowButton = document.getElementById("live");
  let asking = null;
  const spanTo = (lastMs) => {
    if (!slider) return;
    slider.max = String(lastMs);
    if (!isBack) slider.value = slider.max;
    spoken();
  };
  const spoken = () => {
    const text = isBack ? inWords(Number(slider.value) - Number(slider.min)) : "now";
    output.textContent = text;
    slider.setAttribute("aria-valuetext", text);
  };
  const lookBack = async () => {
    const at = slider.value;
    if (asking !== null) { asking = at; return; }
    asking = at;
    while (asking !== null) {
      const moment = asking;
      const answer = await fetch(`${body.dataset.parts}?at_ms=${moment}`);
      if (answer.ok && isBack) take(await answer.json());
      asking = asking === moment ? null : asking;
    }
  };
  if (slider) {
    slider.addEventListener("input", () => {
      isBack = true;
      nowButton.hidden = false;
      if (source) source.close();
      say("looking back", "paused");
      spoken();
      lookBack();
    });
    nowButton.addEventListener("click", () => {
      isBack = false;
      nowButton.hidden = true;
      lastId = "";
      spoken();
      if (!isPaused) connect();
    });
  }

  // Filters: the address keeps them, and the stream follows.
  const filter = document.getElementById("filter");
  let waiting = 0;
  const follow = () => {
    const fields = new URLSearchParams();
    for (const [name, value] of new FormData(filter)) if (value && !(name === "sort" && value === "trouble")) fields.set(name, value);
    const query = fields.toString();
    const address = new URL(location.href);
    if (address.searchParams.has("wall")) fields.set("wall", address.searchParams.get("wall"));
    address.search = fields.toString();
    history.replaceState(null, "", address);
    fields.set("wall", "1");
    const wall = document.getElementById("wall");
    if (wall) wall.href = `?${fields}`;
    streamAddress = `${body.dataset.stream.split("?")[0]}?${query}`;
    lastId = "";
    if (!isPaused) connect();
  };
  if (filter) {
    filter.addEventListener("submit", (event) => { event.preventDefault(); follow(); });
    filter.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(follow, 10); });
  }

  // Keys.
  const rows = () => [...document.querySelectorAll("#calls > tr")];
  const mark = () => {
    for (const row of rows()) {
      const isChosen = row.id === chosen;
      if (row.classList.contains("chosen") !== isChosen) row.classList.toggle("chosen", isChosen);
    }
  };
  const move = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.id === chosen);
    const row = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    chosen = row.id;
    row.querySelector("a").focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
    mark();
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.matches("input, select, textarea");
    if (event.key === "Escape" && isTyping) { event.target.blur(); return; }
    if (isTyping) return;
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "p" && pauseButton) pause(!isPaused);
    else if (event.key === "/" && document.getElementById("text")) { event.preventDefault(); document.getElementById("text").focus(); }
  });

  if (pauseButton) pauseButton.addEventListener("click", () => pause(!isPaused));
  const turn = new URLSearchParams(location.search).get("turn");
  if (turn && /^\d{1,6}$/.test(turn)) document.getElementById(`call-t${turn}`)?.scrollIntoView();
  if (streamAddress) { connect(); setInterval(tick, 1000); }
  addEventListener("pagehide", () => { if (source) source.close(); });
})();
