// The timeline of a call on a canvas: a lane for each engine, and in it the phases of each iteration.

const LANE = 26; // pixels of a lane
const LEFT = 66; // pixels of the names of the lanes
const FOOT = 20; // pixels of the axis
const WORK = ["transfer", "compile", "kernel", "host"]; // as in record.py

const seconds = (value) => (value < 0.9995 ? `${(value * 1e3).toPrecision(3)} ms` : `${value.toPrecision(4)} s`);

// The spans as objects, from rows of numbers: rank, run, iteration, start, and the seconds of each phase.
const spansOf = (about, bytes) => {
  if (!about.phases) return [];
  const numbers = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  const width = 4 + about.phases.length;
  const spans = [];
  for (let at = 0; at + width <= numbers.length; at += width) {
    const [rank, run, iteration, start] = numbers.subarray(at, at + 4);
    const parts = numbers.subarray(at + 4, at + width);
    spans.push({ rank, run, iteration, start, parts, end: start + parts.reduce((sum, each) => sum + each, 0) });
  }
  return spans;
};

const timeline = (ask) => {
  const pick = element("select", { "aria-label": "Call of the timeline" });
  const canvas = element("canvas", {
    tabindex: "0",
    role: "application",
    "aria-label": "Timeline: left and right choose an iteration, up and down an engine, plus and minus zoom, 0 shows all",
  });
  const words = element("output", { class: "xpu-numbers", "aria-live": "polite" });
  const legend = element("div", { class: "xpu-legend xpu-flow" });
  const measure = element("input", { type: "checkbox" });
  let about = {}, spans = [], lanes = [], from = 0, to = 1, end = 1, marked = null, held = null;

  const x = (time) => LEFT + ((time - from) / (to - from)) * (canvas.clientWidth - LEFT);
  const timeAt = (pixel) => from + ((pixel - LEFT) / (canvas.clientWidth - LEFT)) * (to - from);

  const draw = () => {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, lanes.length * LANE + FOOT];
    if (!width) return;
    canvas.style.height = `${height}px`;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const ink = getComputedStyle(canvas).color;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = ink;
    lanes.forEach((rank, lane) => pen.fillText(`engine ${rank}`, 2, lane * LANE + LANE / 2));
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, width - LEFT, height - FOOT);
    pen.clip();
    for (const span of spans) {
      if (span.end < from || span.start > to) continue;
      const top = lanes.indexOf(span.rank) * LANE + 3;
      let at = span.start;
      span.parts.forEach((part, p) => {
        if (part > 0 && about.kinds[p] !== "other") {
          pen.fillStyle = about.colours[p];
          pen.fillRect(x(at), top, Math.max(0.5, x(at + part) - x(at)), LANE - 6);
        }
        at += part;
      });
      pen.globalAlpha = 0.6; // where an iteration begins, as soon as it is wide enough
      pen.fillStyle = ink;
      if (x(span.end) - x(span.start) > 5) pen.fillRect(x(span.start), top - 2, 1, LANE - 2);
      pen.globalAlpha = 1;
    }
    if (marked) {
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      const top = lanes.indexOf(marked.rank) * LANE + 2;
      pen.strokeRect(x(marked.start), top, Math.max(2, x(marked.end) - x(marked.start)), LANE - 4);
    }
    pen.restore();
    pen.fillStyle = ink;
    pen.globalAlpha = 0.8;
    pen.textAlign = "left";
    pen.fillText(seconds(from), LEFT, height - FOOT / 2);
    pen.textAlign = "right";
    pen.fillText(seconds(to), width - 2, height - FOOT / 2);
    pen.textAlign = "center";
    pen.fillText(`${seconds(to - from)} wide`, LEFT + (width - LEFT) / 2, height - FOOT / 2);
  };

  const tell = (span) => {
    marked = span;
    if (!span) return draw();
    const named = [...span.parts].map((part, p) => [part, about.phases[p]]).filter(([part]) => part > 0);
    const which = about.cell
      ? `, ${seconds(span.start)} after the beginning`
      : `, ${span.run > 1 ? `run ${span.run}, ` : ""}iteration ${span.iteration}`;
    const slowest = about.cell ? "" : `; the most work: engine ${busiest(span)}`;
    words.textContent =
      `engine ${span.rank}${which}: ${seconds(span.end - span.start)} (` +
      `${named.map(([part, phase]) => `${phase} ${seconds(part)}`).join(", ")})${slowest}`;
    draw();
  };
  const work = (span) =>
    span.parts.reduce((sum, part, p) => sum + (WORK.includes(about.kinds[p]) ? part : 0), 0);
  const busiest = (span) =>
    spans
      .filter((each) => each.run === span.run && each.iteration === span.iteration)
      .reduce((most, each) => (work(each) > work(most) ? each : most)).rank;

  const see = (first, last) => {
    const width = Math.min(end, Math.max(last - first, end * 1e-5));
    from = Math.max(0, Math.min(first, end - width));
    to = from + width;
    draw();
  };
  const zoom = (factor, middle = (from + to) / 2) =>
    see(middle - (middle - from) * factor, middle + (to - middle) * factor);
  const move = (step) => {
    const lane = spans.filter((each) => each.rank === (marked?.rank ?? lanes[0]));
    const now = lane.indexOf(marked);
    const next = lane[Math.min(lane.length - 1, Math.max(0, now + step))];
    if (!next) return;
    if (next.start < from || next.end > to) see(next.start - (to - from) / 2, next.start + (to - from) / 2);
    tell(next);
  };
  const change = (step) => {
    const rank = lanes[Math.min(lanes.length - 1, Math.max(0, lanes.indexOf(marked?.rank ?? lanes[0]) + step))];
    const same = spans.find((each) => each.rank === rank && each.run === marked?.run && each.iteration === marked?.iteration);
    tell(same ?? spans.find((each) => each.rank === rank) ?? null);
  };
  const keys = {
    ArrowLeft: () => move(-1),
    ArrowRight: () => move(1),
    ArrowUp: () => change(-1),
    ArrowDown: () => change(1),
    "+": () => zoom(0.5),
    "-": () => zoom(2),
    0: () => see(0, end),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  });
  canvas.addEventListener("pointerdown", (event) => {
    held = event.offsetX;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held !== null) {
      const moved = timeAt(held) - timeAt(event.offsetX);
      held = event.offsetX;
      return see(from + moved, to + moved);
    }
    const rank = lanes[Math.floor(event.offsetY / LANE)];
    const time = timeAt(event.offsetX);
    const span = spans.find((each) => each.rank === rank && each.start <= time && time < each.end);
    if (span !== marked) tell(span ?? null);
  });
  for (const over of ["pointerup", "pointercancel"]) canvas.addEventListener(over, () => (held = null));
  // Without a focus the wheel scrolls the page.
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.offsetX));
    },
    { passive: false },
  );
  const redraw = new ResizeObserver(draw);
  redraw.observe(canvas);
  pick.addEventListener("change", () => ask("timeline", Number(pick.value)));
  measure.addEventListener("change", () => ask("measure", measure.checked));
  const bar = (label, ...made) => element("div", { class: "xpu-buttons", role: "toolbar", "aria-label": label }, ...made);
  const root = element(
    "div",
    {},
    element("div", { class: "xpu-pick" }, pick, element("label", {}, measure, " measure %%xpu cells")),
    legend,
    canvas,
    words,
    bar(
      "Timeline",
      button("Zoom in", () => zoom(0.5)),
      button("Zoom out", () => zoom(2)),
      button("Show all", () => see(0, end)),
      button("PNG", () => ask("export", "png"), { "aria-label": "Timeline as PNG" }),
      button("CSV", () => ask("export", "csv"), { "aria-label": "Timeline as CSV" }),
      button("Trace for Perfetto", () => ask("export", "trace")),
    ),
  );
  return {
    root,
    offer: (calls) => {
      const before = pick.value;
      pick.replaceChildren(
        element("option", { value: "0" }, "the latest call"),
        ...calls.map(([number, title]) => element("option", { value: String(number) }, `${number}  ${title}`)),
      );
      pick.value = calls.some(([number]) => String(number) === before) ? before : "0";
    },
    show: (now, bytes) => {
      const other = now.number !== about.number;
      const wasWhole = other || (from === 0 && to === end);
      about = now;
      spans = spansOf(about, bytes);
      lanes = [...new Set(spans.map((span) => span.rank))].sort((a, b) => a - b);
      end = Math.max(1e-9, ...spans.map((span) => span.end));
      marked = null;
      legend.replaceChildren(
        ...(about.phases ?? []).map((phase, p) =>
          element("span", {}, element("i", { class: `xpu-key xpu-p-${about.kinds[p]}`, "aria-hidden": "true" }), phase),
        ),
      );
      canvas.hidden = !spans.length;
      if (other) words.textContent = spans.length ? "" : "No iterations of this call were noted.";
      if (wasWhole) see(0, end);
      else draw();
    },
    close: () => redraw.disconnect(),
  };
};
