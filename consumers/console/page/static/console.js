// Keeps a page up to date: takes the parts that changed, moves the clocks, and lets a person pause, look back, filter and use keys.
// Text of calls reaches the page only as markup that the server has escaped.
"use strict";
(() => {
  const LOST_MS = 12000;
  const STILL_MS = 10000;
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

  // Moments are told in the time of who reads; their title has UTC.
  const local = (root) => {
    for (const moment of root.querySelectorAll("time[data-at]")) {
      const at = new Date(Number(moment.dataset.at)), time = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
      if (Number.isNaN(at.getTime())) continue;
      moment.title = at.toISOString();
      if ("utc" in moment.dataset) time.second = "2-digit";
      moment.textContent = "day" in moment.dataset
        ? at.toLocaleString([], { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" }) : at.toLocaleTimeString([], time);
      const utc = `${moment.title.slice(11, 19)} UTC`;
      if ("utc" in moment.dataset) moment.textContent = at.getTimezoneOffset() ? `${moment.textContent} (${utc})` : utc;
    }
    return root;
  };
  const element = (markup) => {
    const template = document.createElement("template");
    template.innerHTML = policy.createHTML(markup);
    return local(template.content).firstElementChild;
  };

  // What a person has opened stays open: the server does not know of it.
  const callbacks = { beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS") };
  // A row changes cell by cell, and a cell with a clock only gets another time: a fifth of them change every second.
  const morphRow = (there, fresh) => {
    there.className = fresh.className;
    const cells = [...fresh.cells];
    [...there.cells].forEach((cell, at) => {
      const clock = cell.querySelector("time[data-since]"), other = cells[at].querySelector("time[data-since]");
      if (clock && other) clock.dataset.since = other.dataset.since;
      else if (!cell.isEqualNode(cells[at])) cell.replaceWith(cells[at]);
    });
  };
  const morph = (there, fresh) => {
    if (there.tagName === "TR") morphRow(there, fresh);
    else Idiomorph.morph(there, fresh, { morphStyle: "outerHTML", restoreFocus: true, callbacks });
  };
  const fresh = new Map(), held = new Map();
  let movedAt = -STILL_MS, words = null, turn = null;
  const arrange = (container, ids) => {
    const wanted = new Set(ids);
    for (const child of [...container.children]) if (!wanted.has(child.id)) child.remove();
    let next = container.firstElementChild;
    for (const id of ids) {
      const child = document.getElementById(id) || element(fresh.get(id) || "");
      fresh.delete(id);
      if (!child) continue;
      if (child === next) next = next.nextElementSibling;
      else container.insertBefore(child, next);
    }
  };
  // Rows keep their places while the mouse moves over them, and a little longer.
  const isStill = (container) =>
    container.tagName === "TBODY" && container.matches(":hover") && performance.now() - movedAt < STILL_MS;
  const settle = () => {
    for (const [box, ids] of held) {
      const container = document.getElementById(box);
      if (isStill(container)) continue;
      arrange(container, ids);
      held.delete(box);
    }
    if (!held.size) fresh.clear();
    mark();
  };
  const take = (news) => {
    // What is seen up to its end goes on being seen so while it grows.
    const atEnd = [...document.querySelectorAll(".timeline .scroll, .transcript")].filter(
      (box) => box.scrollLeft + box.clientWidth >= box.scrollWidth - 2 && box.scrollTop + box.clientHeight >= box.scrollHeight - 2);
    for (const [id, markup] of Object.entries(news.parts)) {
      const there = document.getElementById(id);
      if (there) morph(there, element(markup));
      else fresh.set(id, markup);
    }
    for (const [box, ids] of Object.entries(news.order)) if (document.getElementById(box)) held.set(box, ids);
    for (const box of atEnd) { box.scrollLeft = box.scrollWidth; box.scrollTop = box.scrollHeight; }
    if (news.last_ms) spanTo(news.last_ms);
    words = document.querySelector(".transcript");
    settle();
    tick();
  };
  document.addEventListener("mousemove", () => { movedAt = performance.now(); }, { passive: true });

  // Clocks: how long ago something was, by the server's time.
  const inWords = (ms) => {
    const seconds = Math.max(0, Math.floor(ms / 1000));
    const minutes = Math.floor(seconds / 60);
    const two = (number) => String(number).padStart(2, "0");
    if (minutes >= 60) return `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(seconds % 60)}`;
    return `${minutes}:${two(seconds % 60)}`;
  };
  const tick = () => {
    if (held.size) settle();
    const now = Date.now() + skewMs;
    const isLost = link && heardAt > 0 && (!source || source.readyState !== EventSource.OPEN || performance.now() - heardAt > LOST_MS);
    for (const clock of isBack || isLost ? [] : document.querySelectorAll("time[data-since]")) {
      const text = inWords(now - Number(clock.dataset.since));
      if (clock.textContent !== text) clock.textContent = text;
    }
    if (!link || isPaused || isBack) return;
    const heard = new Date(Date.now() - (performance.now() - heardAt)).toLocaleTimeString(undefined, { hourCycle: "h23" });
    document.body.classList.toggle("out-of-date", isLost);
    say(isLost ? `connection lost; all is as of ${heard}` : "live", isLost ? "lost" : "live");
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
    if (wanted) { source.close(); say("paused", "paused"); document.body.classList.remove("out-of-date"); } else if (!isBack) connect();
  };

  // What a person has chosen is in the address.
  const asked = new URLSearchParams(location.search);
  const note = (name, value) => {
    const address = new URL(location.href);
    if (value === null) address.searchParams.delete(name); else address.searchParams.set(name, value);
    address.hash = "";
    history.replaceState(null, "", address);
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
    const back = () => {
      isBack = true;
      nowButton.hidden = false;
      if (source) source.close();
      say("looking back", "paused");
      note("at_ms", slider.value);
      spoken();
      lookBack();
    };
    slider.addEventListener("input", back);
    const moment = asked.get("at_ms");
    if (/^\d{1,15}$/.test(moment || "")) { slider.value = moment; back(); }
    nowButton.addEventListener("click", () => {
      isBack = false;
      nowButton.hidden = true;
      note("at_ms", null);
      lastId = "";
      spoken();
      if (!isPaused) connect();
    });
  }

  // Filters: the address keeps them, and the stream follows. A form of a page without a stream is sent.
  const filter = body.dataset.stream ? document.getElementById("filter") : null;
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
  const rows = () => [...document.querySelectorAll("#calls > tr:not(.group)")];
  const mark = () => {
    for (const row of rows()) {
      const isChosen = row.id === chosen;
      if (row.classList.contains("chosen") !== isChosen) row.classList.toggle("chosen", isChosen);
    }
    for (const each of document.querySelectorAll(".turn, .timeline a")) {
      const isChosen = turn !== null && (each.id || each.getAttribute("href").slice(1)) === turn;
      if (each.classList.contains("chosen") !== isChosen) each.classList.toggle("chosen", isChosen);
    }
  };
  const move = (by) => {
    const all = words ? [...words.children] : rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.id === (words ? turn : chosen));
    const row = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    if (words) { choose(row.id); return; }
    chosen = row.id;
    row.querySelector("a").focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
    mark();
  };

  // One call: its words and its timeline go in step, and the turn that is chosen is in both.
  words = document.querySelector(".transcript");
  const drawing = () => document.querySelector(".timeline .scroll");
  const towards = (id) => {
    const box = drawing(), link = box && box.querySelector(`a[href="#${id}"]`);
    if (!link) return;
    box.scrollLeft += link.getBoundingClientRect().left - box.getBoundingClientRect().left - box.clientWidth / 3;
  };
  const wordsOf = (id) => {
    const there = document.getElementById(id);
    if (there && words) words.scrollTop += there.getBoundingClientRect().top - words.getBoundingClientRect().top - 8;
  };
  const choose = (id, isAsked = true) => {
    turn = id;
    note("turn", id.replace(/^.*-t/, ""));
    towards(id);
    // a link with a turn shows what was wrong first, if the words are in sight
    if (isAsked || words.getBoundingClientRect().top > innerHeight - 160) words.scrollIntoView({ block: "nearest" });
    wordsOf(id);
    hearFrom(id);
    mark();
  };

  // The recording: a turn that is chosen is heard next, and what is heard is marked in words and timeline.
  const player = () => document.querySelector("#recording audio");
  const hearFrom = (id) => {
    const audio = player(), start = document.getElementById(id)?.dataset.start;
    if (audio && start) audio.currentTime = Math.max(0, (Number(start) - Number(audio.dataset.starts)) / 1000);
  };
  const followSound = ({ target: audio }) => {
    const atMs = Number(audio.dataset.starts) + audio.currentTime * 1000;
    const began = [...document.querySelectorAll(".turn[data-start]")].filter((each) => Number(each.dataset.start) <= atMs);
    const heard = began.pop(), svg = document.querySelector(".timeline svg");
    const before = document.querySelector(".turn[aria-current]");
    if (heard !== before) {
      before?.removeAttribute("aria-current");
      heard?.setAttribute("aria-current", "true");
      if (heard) towards(heard.id);
      if (heard && !words.matches(":hover")) wordsOf(heard.id);
    }
    if (!svg) return;
    const line = svg.querySelector(".playhead") || svg.appendChild(document.createElementNS(svg.namespaceURI, "line"));
    const share = (atMs - Number(svg.dataset.start)) / (Number(svg.dataset.end) - Number(svg.dataset.start));
    const at = `${(100 * Math.min(1, Math.max(0, share || 0))).toFixed(3)}%`;
    for (const [name, value] of Object.entries({ class: "playhead", x1: at, x2: at, y1: 14, y2: 136 })) line.setAttribute(name, value);
  };
  document.addEventListener("timeupdate", followSound, true);
  document.addEventListener("error", (event) => {
    if (event.target === player()) document.getElementById("heard").textContent = "The recording cannot be loaded: its address may have expired.";
  }, true);
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#call-t"]'), spoken = event.target.closest(".transcript > .turn");
    if (link && document.getElementById(link.getAttribute("href").slice(1))) {
      event.preventDefault();
      choose(link.getAttribute("href").slice(1));
    } else if (spoken && !event.target.closest("a, summary, pre, .depth")) choose(spoken.id);
  });
  document.addEventListener("scroll", (event) => {
    const box = event.target;
    if (!words || box === document || !box.matches(":hover, :focus")) return;
    if (box === words) {
      const top = words.getBoundingClientRect().top;
      const first = [...words.children].find((each) => each.getBoundingClientRect().bottom > top + 16);
      if (first) towards(first.id);
    } else if (box === drawing()) {
      const left = box.getBoundingClientRect().left;
      const first = [...box.querySelectorAll("a")].find((each) => each.getBoundingClientRect().right > left + box.clientWidth / 3);
      if (first) wordsOf(first.getAttribute("href").slice(1));
    }
  }, true);

  // The list that a person came from, so that he can go on to the next call of it.
  const around = document.getElementById("around");
  document.addEventListener("click", (event) => {
    const links = [...document.querySelectorAll('table.calls tbody th a[href*="calls/"]')].map((each) => each.href);
    if (links.length && event.target.closest("table.calls a")) sessionStorage.setItem("calls", JSON.stringify(links));
  });
  if (around) {
    const links = JSON.parse(sessionStorage.getItem("calls") || "[]"), here = location.origin + location.pathname;
    const at = links.indexOf(here);
    const others = document.getElementById("others");  // to compare this one with
    for (const link of others ? links : []) {
      if (link !== here) others.append(new Option("", decodeURIComponent(link.replace(/^.*\/calls\//, ""))));
    }
    for (const [link, to] of [["prev", links[at - 1]], ["next", links[at + 1]]]) {
      const there = around.querySelector(`[rel=${link}]`);
      if (at >= 0 && to) { there.href = to; around.hidden = false; } else there.hidden = true;
    }
  }

  // Without a mark there is nothing to compare; a browser that goes back keeps the marks.
  const marks = document.querySelector('form[action="compare"]:has([type="checkbox"])');
  if (marks) {
    const follow = () => { marks.querySelector("button").disabled = !marks.querySelector(":checked"); };
    marks.addEventListener("change", follow);
    addEventListener("pageshow", follow);
  }

  // What is copied.
  const copy = async (text) => {
    if (navigator.clipboard) { await navigator.clipboard.writeText(text); return; }
    const field = document.body.appendChild(document.createElement("textarea"));  // an address without TLS has no clipboard
    field.value = text;
    field.select();
    document.execCommand("copy");
    field.remove();
  };
  const MOST_SAID = 300;
  const copied = {
    link: () => location.href,
    id: (button) => button.dataset.text,
    // The call, the turn that is looked at with its words, and its address with that turn.
    summary: () => {
      const at = document.querySelector(".turn.chosen") || document.querySelector(".turn.first"), link = new URL(location.href);
      const lines = [document.getElementById("summary").textContent];
      if (at) {
        const said = [...at.querySelectorAll(".said")].map((each) => `${each.children[0].textContent}: ${each.children[1].textContent}`).join(" / ");
        lines.push(`${at.querySelector("h4").textContent}${said && `. ${said.slice(0, MOST_SAID)}${said.length > MOST_SAID ? " …" : ""}`}`);
        link.searchParams.set("turn", at.id.replace(/^.*-t/, ""));
      }
      return [...lines, link.href].join("\n");
    },
    // What is wrong now, the address of its calls, that of all of them also later, and the worst.
    now: () => {
      const head = document.getElementById("counts");
      const said = [...head.querySelectorAll(".verdict, .began, .do summary, .do .ask, :scope > p:has(> strong)")].map((each) => each.textContent.replace(/\s+/g, " ").replace(" Callers to call back.", "").trim());
      const links = [["This bad time, to keep", "a.kept"], ["Its calls", ".verdict a.past"], ["The versions compared", ".began a"], ["Callers to call back", "a.back"], ["Worst call", "a.worst"]];
      const found = links.map(([name, at]) => [name, head.querySelector(at)]).filter(([, link]) => link);
      return [...said, ...found.map(([name, link]) => `${name}: ${link.href}`), `Now: ${(head.querySelector(".verdict a") || location).href}`].join("\n");
    },
  };
  for (const button of document.querySelectorAll("button[data-copy]")) {
    const name = button.textContent;
    button.addEventListener("click", async () => {
      await copy(copied[button.dataset.copy](button));
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = name; }, 1500);
    });
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.matches("input:not([type=range]), select, textarea");
    if (event.key === "Escape" && isTyping) { event.target.blur(); return; }
    if (isTyping) return;
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "[" && around) around.querySelector("[rel=prev][href]")?.click();
    else if (event.key === "]" && around) around.querySelector("[rel=next][href]")?.click();
    else if (event.key === "p" && pauseButton) pause(!isPaused);
    else if (event.key === "l" && player()) { if (player().paused) player().play().catch(() => {}); else player().pause(); }
    else if (event.key === "/" && document.getElementById("text")) { event.preventDefault(); document.getElementById("text").focus(); }
  });

  if (pauseButton) pauseButton.addEventListener("click", () => pause(!isPaused));
  const first = document.querySelector(".turn.first");
  if (words && /^\d{1,6}$/.test(asked.get("turn") || "")) choose(`call-t${asked.get("turn")}`, false);
  else if (first && !location.hash) { towards(first.id); wordsOf(first.id); }
  local(document);
  if (streamAddress) { if (!isBack) connect(); setInterval(tick, 1000); }
  addEventListener("pagehide", () => { if (source) source.close(); });
  addEventListener("pageshow", (event) => { if (event.persisted && source && !isPaused && !isBack) connect(); });
})();
