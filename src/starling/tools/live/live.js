// Asks this page's address for news, and puts in their place only those parts that differ.
(() => {
  const EVERY = 2000; // milliseconds between two questions
  const told = document.querySelector("#live");
  let tag = null, waiting = false;

  const say = (text, state) => {
    if (told.textContent !== text) told.textContent = text;
    told.className = `small ${state}`;
  };

  // Parts whose children are compared one by one; any other element is replaced as a whole.
  const isBox = (element) => element.matches("header, main, section, details, .grid-of-charts, .limits, #now");
  const keyOf = (element) => {
    const title = element.querySelector(":scope > summary, :scope > figcaption, :scope > h2");
    return `${element.tagName} ${(title ?? element).textContent.replace(/\d+/g, "").slice(0, title ? 200 : 0)}`;
  };

  const FOCUSABLE = "a, button, summary, video, [tabindex]";
  const keepPlace = (old, now) => {
    const before = [old, ...old.querySelectorAll("*")], after = [now, ...now.querySelectorAll("*")];
    const pick = (elements, selector) => elements.filter((element) => element.matches(selector));
    const cursors = pick(after, ".plot");
    pick(before, ".plot").forEach((plot, i) => {
      if (plot.dataset.cursor && cursors[i]) cursors[i].dataset.cursor = plot.dataset.cursor;
    });
    const details = pick(after, "details");
    pick(before, "details").forEach((part, i) => { if (details[i]) details[i].open = part.open; });
    const scrolled = pick(before, ".scroll").map((part) => part.scrollLeft);
    const focused = pick(before, FOCUSABLE).indexOf(document.activeElement);
    old.replaceWith(now);
    pick(after, ".scroll").forEach((part, i) => { part.scrollLeft = scrolled[i] ?? 0; });
    if (focused >= 0) pick(after, FOCUSABLE)[focused]?.focus({ preventScroll: true });
  };

  const update = (old, now) => {
    if (old === told || old.isEqualNode(now)) return;
    if (old.matches(".legend") && old.textContent === now.textContent) return; // it has what is hidden
    if (!isBox(old) || !isBox(now)) { keepPlace(old, now); return; }
    const known = new Map();
    for (const child of old.children) known.set(keyOf(child), [...(known.get(keyOf(child)) ?? []), child]);
    let place = old.firstElementChild;
    for (const child of Array.from(now.children)) {
      const match = known.get(keyOf(child))?.shift();
      if (!match) { old.insertBefore(child, place); continue; }
      if (match === place) place = place.nextElementSibling;
      else old.insertBefore(match, place);
      update(match, child);
    }
    for (const left of [...known.values()].flat()) left.remove();
  };

  const ask = async () => {
    const answer = await fetch(location.pathname, { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      const page = new DOMParser().parseFromString(text, "text/html");
      for (const part of ["header", "#now", "main"])
        update(document.querySelector(part), page.querySelector(part));
      document.title = page.title;
      document.dispatchEvent(new Event("starling:update"));
      tag = answer.headers.get("ETag");
    }
    say(`Live: updates by itself`, "good");
  };

  const poll = async () => {
    if (waiting || document.hidden) return;
    waiting = true;
    try { await ask(); }
    catch { say("No connection: this is the last known state. Is starling watch still running?", "bad"); }
    finally { waiting = false; }
  };

  setInterval(poll, EVERY);
  document.addEventListener("visibilitychange", poll);
  poll();
})();
