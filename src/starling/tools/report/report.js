"use strict";
// Everything is drawn already: this switches the x-axis, smooths lines, hides series, and reads values at a cursor.
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const original = new WeakMap();

  const parse = (d) => d.replace(/[MZ]/g, "").split("L").map((pair) => pair.split(" ").map(Number));
  const join = (points) => "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");

  // Exponential moving average without bias towards the start, as `starling report --png --smooth` has it.
  const ema = (points, weight) => {
    let past = 0, norm = 0;
    return points.map(([x, y]) => {
      past = weight * past + (1 - weight) * y;
      norm = weight * norm + (1 - weight);
      return [x, past / norm];
    });
  };

  const smooth = (weight) => {
    for (const path of all(".plot .line:not(.dot), .plot .band")) {
      if (!original.has(path)) original.set(path, path.getAttribute("d"));
      const d = original.get(path);
      if (weight === 0) { path.setAttribute("d", d); continue; }
      const points = parse(d);
      if (!path.classList.contains("band")) { path.setAttribute("d", join(ema(points, weight))); continue; }
      const half = points.length / 2;
      const high = ema(points.slice(0, half), weight), low = ema(points.slice(half).reverse(), weight);
      path.setAttribute("d", join(high.concat(low.reverse())) + "Z");
    }
  };

  const number = (value) => {
    const size = Math.abs(value);
    for (const [unit, suffix] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (size >= unit && size < 1e15) return String(Number((value / unit).toPrecision(4))) + suffix;
    return String(Number(value.toPrecision(3)));
  };
  const time = (seconds) => {
    const minutes = Math.round(seconds / 60);
    if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
    return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  };

  const valueAt = (points, x) => {
    if (points.length === 1 || x < points[0][0] || x > points[points.length - 1][0]) return null;
    let i = 1;
    while (i < points.length - 1 && points[i][0] < x) i++;
    const [[x0, y0], [x1, y1]] = [points[i - 1], points[i]];
    return x1 === x0 ? y1 : y0 + (y1 - y0) * (x - x0) / (x1 - x0);
  };

  const readAt = (plot, x) => {
    const [left, top, right, bottom] = plot.dataset.area.split(" ").map(Number);
    const [x0, x1] = plot.dataset.x.split(" ").map(Number), [y0, y1] = plot.dataset.y.split(" ").map(Number);
    x = Math.min(right, Math.max(left, x));
    const cursor = plot.querySelector(".cursor"), readout = plot.closest("figure").querySelector(".readout");
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.setAttribute("visibility", "visible");
    plot.dataset.cursor = x;
    const at = x0 + (x - left) / (right - left) * (x1 - x0);
    const parts = [document.createElement("span")];
    parts[0].textContent = plot.dataset.axis === "time" ? time(at) : `${number(at)} steps`;
    for (const path of all("path[data-name]", plot)) {
      const group = path.closest("g");
      if (group.getAttribute("visibility") === "hidden") continue;
      const y = valueAt(parse(path.getAttribute("d")), x);
      if (y === null) continue;
      const part = document.createElement("span"), value = document.createElement("i");
      part.className = group.getAttribute("class");
      value.textContent = number(y0 + (bottom - y) / (bottom - top) * (y1 - y0));
      part.append(`${path.dataset.name}: `, value);
      parts.push(part);
    }
    readout.replaceChildren(...parts);
  };

  const clear = (plot) => {
    plot.querySelector(".cursor").setAttribute("visibility", "hidden");
    delete plot.dataset.cursor;
  };

  const plotOf = (event) => event.target.closest?.(".plot") ?? null;
  const leave = (event) => {
    const plot = plotOf(event);
    if (plot && !plot.contains(event.relatedTarget)) clear(plot);
  };
  document.addEventListener("pointermove", (event) => {
    const plot = plotOf(event);
    if (!plot) return;
    const box = plot.getBoundingClientRect();
    readAt(plot, (event.clientX - box.left) / box.width * plot.viewBox.baseVal.width);
  });
  document.addEventListener("pointerout", leave);
  document.addEventListener("focusout", leave);
  document.addEventListener("keydown", (event) => {
    const plot = plotOf(event);
    if (!plot) return;
    const [left, , right] = plot.dataset.area.split(" ").map(Number);
    const now = Number(plot.dataset.cursor ?? right), step = (right - left) / 40;
    const next = { ArrowLeft: now - step, ArrowRight: now + step, Home: left, End: right }[event.key];
    if (event.key === "Escape") clear(plot);
    if (next === undefined) return;
    event.preventDefault();
    readAt(plot, next);
  });

  const slider = document.querySelector("#smooth"), shown = document.querySelector("#smooth-value");
  const each = document.querySelector("#each");
  const showAxis = () => {
    const axis = document.querySelector("input[name=axis]:checked").value;
    for (const part of all("[data-on-axis]")) part.hidden = part.dataset.onAxis !== axis;
  };
  const showSmoothed = () => { shown.textContent = slider.value; smooth(Number(slider.value)); };
  const showSeries = () => {
    for (const button of all(".legend button"))
      for (const group of all(`.plot g[data-series="${Number(button.dataset.series)}"]`, button.closest("section")))
        group.setAttribute("visibility", button.getAttribute("aria-pressed") === "true" ? "visible" : "hidden");
  };
  const show = () => {
    showAxis();
    showSmoothed();
    showSeries();
    for (const plot of all(".plot[data-cursor]")) readAt(plot, Number(plot.dataset.cursor));
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".legend button");
    if (!button) return;
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    showSeries();
  });
  all("input[name=axis]").forEach((input) => input.addEventListener("change", showAxis));
  slider.addEventListener("input", showSmoothed);
  each.addEventListener("change", () => document.body.classList.toggle("no-runs", !each.checked));
  document.addEventListener("starling:update", show); // after charts were replaced
  document.querySelector(".controls").hidden = false;
  show();
})();
