"use strict";
// Draws the figures in the page's own colours, and again when the reader's scheme changes.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const css = () => getComputedStyle(document.documentElement);
  const narrow = () => window.innerWidth < 640;

  function coloured(value, style) {
    if (typeof value === "string" && value[0] === "@") {
      return style.getPropertyValue("--" + value.slice(1)).trim() || value;
    }
    if (Array.isArray(value)) {
      const first = value[0];  // long columns of numbers have no colours
      return typeof first === "number" ? value : value.map((one) => coloured(one, style));
    }
    if (value && typeof value === "object") {
      const copy = {};
      for (const key of Object.keys(value)) copy[key] = coloured(value[key], style);
      return copy;
    }
    return value;
  }

  function layoutOf(figure, style) {
    const text = style.getPropertyValue("--text").trim();
    const line = {
      gridcolor: style.getPropertyValue("--grid").trim(),
      zerolinecolor: style.getPropertyValue("--rule").trim(),
    };
    const given = coloured(figure.layout, style);
    return {
      ...given,
      xaxis: {...line, automargin: true, ...given.xaxis},
      yaxis: {...line, automargin: true, fixedrange: true, ...given.yaxis},
      yaxis2: {overlaying: "y", range: [0, 1], visible: false, fixedrange: true},
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: {color: text, size: narrow() ? 11 : 13},
      margin: {l: narrow() ? 40 : 60, r: 12, t: 8, b: 40},
      legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0},
      hovermode: "closest",
      dragmode: narrow() ? false : "zoom",  // a finger scrolls the page
    };
  }

  const config = {responsive: true, displaylogo: false, displayModeBar: false};

  function draw(figure) {
    const style = css();
    return Plotly.react(
      figure.id, coloured(figure.data, style), layoutOf(figure, style), config);
  }

  // What shows time shows the same time.
  let moving = false;
  function follow(figure) {
    document.getElementById(figure.id).on("plotly_relayout", (change) => {
      const reset = change["xaxis.autorange"] === true;
      const low = change["xaxis.range[0]"];
      if (moving || (low === undefined && !reset)) return;
      moving = true;
      range = reset ? null : [low, change["xaxis.range[1]"]];
      const moved = (one) => one.time && drawn.has(one) && (reset || one !== figure);
      const jobs = figures.filter(moved).map((one) =>
        Plotly.relayout(one.id, {
          "xaxis.range": reset ? one.layout.xaxis.range.slice() : [low, change["xaxis.range[1]"]],
        }));
      Promise.all(jobs).finally(() => { moving = false; });
    });
  }

  // Arrow keys move and zoom a figure that has the focus.
  function keys(figure) {
    const box = document.getElementById(figure.id);
    box.addEventListener("keydown", (event) => {
      const step = {ArrowLeft: [-0.2, -0.2], ArrowRight: [0.2, 0.2], "+": [0.2, -0.2],
        "-": [-0.25, 0.25]}[event.key];
      if (event.key === "Escape") {
        Plotly.relayout(box, {"xaxis.autorange": true});
      } else if (step) {
        const [low, high] = box.layout.xaxis.range;
        Plotly.relayout(box, {
          "xaxis.range[0]": low + step[0] * (high - low),
          "xaxis.range[1]": high + step[1] * (high - low),
        });
      } else {
        return;
      }
      event.preventDefault();
    });
  }

  const drawn = new Set();
  let range = null;  // of time, if the reader chose one before a figure was drawn

  async function once(figure) {
    if (drawn.has(figure)) return;
    drawn.add(figure);
    await draw(figure);
    if (!figure.time) return;
    follow(figure);
    keys(figure);
    if (range) await Plotly.relayout(figure.id, {"xaxis.range": range});
  }

  // The numbers and tables are on the screen, or nobody looks: a hidden page paints nothing.
  function painted() {
    return new Promise((next) => {
      if (document.hidden) setTimeout(next);
      else requestAnimationFrame(() => setTimeout(next));
    });
  }

  // The drawing library takes seconds on a slow machine, so that it stands in the page as text.
  function load() {
    const library = document.createElement("script");
    library.textContent = document.querySelector('script[type="text/plain"]').textContent;
    document.head.append(library);
  }

  // What the reader sees first; the rest while nothing else happens.
  async function all() {
    const seen = (one) => {
      const box = document.getElementById(one.id).getBoundingClientRect();
      return box.top < window.innerHeight && box.bottom > 0;
    };
    const mark = (name) => {
      document.documentElement.dataset[name] = String(Math.round(performance.now()));
    };
    const pause = () => new Promise((next) => setTimeout(next));
    mark("scriptMs");
    await painted();
    mark("readableMs");
    load();
    mark("loadedMs");
    for (const figure of figures.filter(seen)) await once(figure);
    mark("openMs");
    for (const figure of figures) {
      await pause();
      for (const near of figures.filter((one) => !drawn.has(one) && seen(one))) await once(near);
      await once(figure);
    }
    mark("drawnMs");
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  all();
})();
