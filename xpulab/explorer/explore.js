// The explorer in a browser. The state is in Python: this script shows it, and sends the user's requests.

const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

// A slider over a list of [value, text]: it shows the text, and requests the value.
const slider = (name, label, options, ask) => {
  const output = element("output", { "aria-hidden": "true" }); // a screen reader reads aria-valuetext
  const input = element("input", { type: "range", min: 0, max: options.length - 1, step: 1 });
  const longest = Math.max(...options.map(([, text]) => text.length)); // so that the slider keeps its length
  const write = () => {
    const [, text] = options[input.value];
    output.textContent = output.title = text;
    input.setAttribute("aria-valuetext", text);
  };
  input.addEventListener("input", () => {
    write();
    ask(name, options[input.value][0]);
  });
  const set = (value) => {
    // The nearest one: Python may set values that are not among them.
    const away = options.map(([each]) => Math.abs(each - value));
    input.value = away.indexOf(Math.min(...away));
    write();
  };
  const style = `--xpu-longest:${longest}`;
  return { root: element("label", { style }, element("span", {}, label), input, output), set };
};

const button = (name, label, ask) => {
  const made = element("button", { type: "button" }, label);
  made.addEventListener("click", () => ask(name, null));
  return made;
};

// Convert the position of the pointer on the page to the units of the features.
const toData = (plot, event) => {
  const [left, top, width, height, lowX, lowY, highX, highY] = plot.dataset.view.split(" ").map(Number);
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(plot.getScreenCTM().inverse());
  const [across, up] = [(at.x - left) / width, 1 - (at.y - top) / height];
  const inside = across >= 0 && across <= 1 && up >= 0 && up <= 1;
  const within = (share) => Math.min(1, Math.max(0, share));
  return { inside, x: lowX + within(across) * (highX - lowX), y: lowY + within(up) * (highY - lowY), at };
};

// The inverse: convert the units of the features to those of the drawing.
const toPlot = (plot, x, y) => {
  const [left, top, width, height, lowX, lowY, highX, highY] = plot.dataset.view.split(" ").map(Number);
  return new DOMPoint(
    left + ((x - lowX) / (highX - lowX)) * width,
    top + (1 - (y - lowY) / (highY - lowY)) * height,
  );
};

const shape = (tag, name) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  made.setAttribute("class", name);
  return made;
};

const placeOf = (center) => {
  const { e, f } = center.transform.baseVal.consolidate().matrix;
  return { x: e, y: f };
};

const nearest = (plot, at) => {
  const distance = (center) => Math.hypot(placeOf(center).x - at.x, placeOf(center).y - at.y);
  return [...plot.querySelectorAll("[data-center]")].sort((a, b) => distance(a) - distance(b))[0];
};

// With the shift key, a rectangle that is drawn with the mouse is shown alone.
const zoomable = (stage, ask) => {
  let from = null;
  const frame = shape("rect", "xpu-frame");
  const plot = () => stage.querySelector("svg.xpu-plot");
  stage.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !event.shiftKey || !event.target.closest("svg.xpu-plot")) return;
    const begun = toData(plot(), event);
    if (!begun.inside) return;
    from = begun;
    event.preventDefault();
    event.stopImmediatePropagation(); // no centre moves
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
    if (!from) return;
    const { at } = toData(plot(), event);
    const [x, y] = [Math.min(from.at.x, at.x), Math.min(from.at.y, at.y)];
    const sides = { x, y, width: Math.abs(at.x - from.at.x), height: Math.abs(at.y - from.at.y) };
    for (const [name, value] of Object.entries(sides)) frame.setAttribute(name, value);
    plot().append(frame);
  });
  stage.addEventListener("pointerup", (event) => {
    if (!from) return;
    const to = toData(plot(), event);
    const part = [[from.x, to.x].sort((a, b) => a - b), [from.y, to.y].sort((a, b) => a - b)];
    from = null;
    frame.remove();
    if (part.every(([low, high]) => low < high)) ask("zoom", part);
  });
};

// While the button is pressed, a free shape that is drawn with the mouse selects the rows inside of it.
const selectable = (stage, pressed, ask) => {
  let drawn = null;
  const [halo, line] = [shape("polyline", "xpu-halo"), shape("polyline", "xpu-lasso")];
  const plot = () => stage.querySelector("svg.xpu-plot");
  const draw = () => {
    const points = drawn.map(({ at }) => `${at.x.toFixed(1)},${at.y.toFixed(1)}`).join(" ");
    for (const each of [halo, line]) each.setAttribute("points", points);
    plot().append(halo, line);
  };
  const end = () => {
    drawn = null;
    halo.remove();
    line.remove();
  };
  stage.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.shiftKey || !pressed() || !event.target.closest("svg.xpu-plot")) return;
    const begun = toData(plot(), event);
    if (!begun.inside) return;
    drawn = [begun];
    event.preventDefault();
    event.stopImmediatePropagation(); // no centre moves
    stage.setPointerCapture(event.pointerId);
    plot().focus({ preventScroll: true }); // for Escape
  });
  stage.addEventListener("pointermove", (event) => {
    if (!drawn) return;
    const next = toData(plot(), event);
    const last = drawn[drawn.length - 1];
    if (Math.hypot(next.at.x - last.at.x, next.at.y - last.at.y) < 3) return;
    drawn.push(next);
    draw();
  });
  stage.addEventListener("pointerup", () => {
    if (!drawn) return;
    const corners = drawn.map(({ x, y }) => [x, y]);
    end();
    ask("select", corners.length < 3 ? null : corners); // a click selects nothing
  });
  stage.addEventListener("pointercancel", end);
};

// Show the row that is nearest to the pointer, or to a cross that the arrow keys move.
const pointing = (stage, tip, ask) => {
  let wanted = null; // the place whose row is to be shown
  let pending = false; // whether an answer is to come: the next place is asked for after it
  let asked = null;
  let row = null;
  let cross = null; // place of the cross, in shares of the axes
  let drawing = false;
  const [ring, lines] = [shape("circle", "xpu-mark"), shape("path", "xpu-mark")];
  ring.setAttribute("r", 6);
  const plot = () => stage.querySelector("svg.xpu-plot");

  const request = () => {
    if (pending || !wanted || wanted === asked) return;
    [pending, asked] = [true, wanted];
    ask("row", wanted);
  };
  const look = (x, y) => {
    wanted = [x, y];
    request();
  };
  const hide = () => {
    [wanted, row] = [null, null];
    tip.hidden = true;
    ring.remove();
  };
  const leave = () => {
    cross = null;
    lines.remove();
    hide();
  };
  // Put the words beside the row, on the side where there is room.
  const place = () => {
    if (!row || row.x === undefined) return;
    const at = toPlot(plot(), row.x, row.y);
    ring.setAttribute("cx", at.x);
    ring.setAttribute("cy", at.y);
    plot().append(ring);
    const { x, y } = at.matrixTransform(plot().getScreenCTM());
    const box = tip.offsetParent.getBoundingClientRect();
    const right = x - box.left + 14;
    const left = Math.max(0, right + tip.offsetWidth > box.width ? right - 28 - tip.offsetWidth : right);
    tip.style.left = `${left}px`;
    tip.style.top = `${Math.max(0, Math.min(y - box.top + 14, box.height - tip.offsetHeight))}px`;
  };
  const write = () => {
    const title = element("div", {}, row.title);
    if (row.hue) title.prepend(element("i", { class: "xpu-key xpu-hue", style: `--xpu-hue:${row.hue}` }));
    const values = row.values.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
    tip.replaceChildren(title, element("dl", {}, ...values), element("div", { class: "xpu-dim" }, row.more));
    tip.hidden = false;
    place();
  };
  const answer = (found) => {
    pending = false;
    if (wanted && found) {
      row = found;
      write();
    } else if (wanted) {
      row = null;
      tip.hidden = true;
      ring.remove();
    }
    request();
  };
  // Replace the drawing. The row may have another cluster now.
  const redraw = (html) => {
    drawing = true;
    stage.innerHTML = html;
    drawing = false;
    stage.append(tip);
  };
  const again = () => {
    if (cross) plot().append(lines);
    if (row) place();
    if (wanted) look(...wanted);
  };

  stage.addEventListener("pointermove", (event) => {
    if (event.buttons || event.pointerType === "touch") return;
    const inPlot = event.target.closest("svg.xpu-plot") && !event.target.closest("[data-center]");
    const { inside, x, y } = inPlot ? toData(plot(), event) : {};
    if (!inside) return cross || hide();
    cross = null;
    lines.remove();
    tip.removeAttribute("aria-live"); // where a pointer goes is not read out
    return look(x, y);
  });
  stage.addEventListener("pointerleave", leave);
  stage.addEventListener("pointerdown", leave, true);
  stage.addEventListener("focusout", () => drawing || leave()); // the end of a drawing ends its focus, too
  stage.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (event.target !== plot() || !step) return;
    event.preventDefault();
    const [left, top, width, height, lowX, lowY, highX, highY] = plot().dataset.view.split(" ").map(Number);
    const share = event.shiftKey ? 0.005 : 0.02;
    const [x, y] = cross ?? [0.5, 0.5];
    cross = [x + step[0] * share, y + step[1] * share].map((each) => Math.min(1, Math.max(0, each)));
    const [across, up] = [left + cross[0] * width, top + (1 - cross[1]) * height];
    lines.setAttribute("d", `M${across - 9} ${up}h18M${across} ${up - 9}v18`);
    plot().append(lines);
    tip.setAttribute("aria-live", "polite");
    look(lowX + cross[0] * (highX - lowX), lowY + cross[1] * (highY - lowY));
  });
  return { answer, again, leave, redraw };
};

// Make the centres movable: by a click, by dragging, and with the arrow keys.
const movable = (stage, ask) => {
  let held = null;
  const plot = () => stage.querySelector("svg.xpu-plot");
  const put = (number, x, y) => ask("move", [number, x, y]);
  const follow = (event) => {
    const { x, y } = toData(plot(), event);
    put(held, x, y);
  };
  stage.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !event.target.closest("svg.xpu-plot")) return;
    const { inside, at } = toData(plot(), event);
    const center = event.target.closest("[data-center]") ?? (inside ? nearest(plot(), at) : null);
    if (!center) return;
    event.preventDefault();
    held = Number(center.dataset.center);
    center.focus({ preventScroll: true });
    stage.setPointerCapture(event.pointerId);
    if (!event.target.closest("[data-center]")) follow(event);
  });
  stage.addEventListener("pointermove", (event) => held !== null && follow(event));
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, () => (held = null));
  stage.addEventListener("keydown", (event) => {
    const center = event.target.closest?.("[data-center]");
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!center || !step) return;
    event.preventDefault();
    const [, , , , lowX, lowY, highX, highY] = plot().dataset.view.split(" ").map(Number);
    const share = event.shiftKey ? 0.005 : 0.02;
    // Start from the requested position, which may not be on the screen yet.
    const [x, y] = center.dataset.at.split(" ").map(Number);
    const to = [x + step[0] * share * (highX - lowX), y + step[1] * share * (highY - lowY)];
    center.dataset.at = to.join(" ");
    put(Number(center.dataset.center), ...to);
  });
};

const render = ({ model, el }) => {
  // The latest requests without an answer. At most one message is sent for each frame of the screen.
  const asked = new Map();
  const waiting = new Map();
  const ask = (name, value) => {
    asked.set(name, value);
    if (!waiting.size) {
      requestAnimationFrame(() => {
        for (const [each, latest] of waiting) model.send({ name: each, value: latest });
        waiting.clear();
      });
    }
    waiting.set(name, value);
  };

  const { title, elbow, iterates, names, points, clusters, eps, min_samples, paces } = model.get("choices");
  const features = names.map((name, number) => [number, name]);
  const sliders = {
    ...(clusters && { k: slider("k", "Clusters", clusters.map((k) => [k, String(k)]), ask) }),
    ...(eps && { eps: slider("eps", "eps", eps.map((each) => [each, each.toPrecision(3)]), ask) }),
    ...(min_samples && {
      min_samples: slider("min_samples", "Samples", min_samples.map((n) => [n, `${n} make a core`]), ask),
    }),
    points: slider("points", "Points", points.map((n) => [n, n.toLocaleString("en-US")]), ask),
    x: slider("x", "Across", features, ask),
    y: slider("y", "Up", features, ask),
    ...(iterates && { pace: slider("pace", "Speed", paces.map((pace) => [pace, `${pace} a second`]), ask) }),
  };
  const play = button("play", "Play", () => ask("play", play.getAttribute("aria-pressed") !== "true"));
  const buttons = [
    ...(iterates
      ? [button("restart", "New start", ask), button("step", "One iteration", ask), play, button("reset", "Reset", ask)]
      : []),
    ...(elbow ? [button("elbow", "Elbow", ask)] : []),
    button("zoom", "Whole plane", ask),
  ];
  const stop = button("stop", "Stop", ask);
  const start = button("start", "Start", ask);
  start.hidden = true;
  // A screen reader reads this: a summary of the state, and errors.
  const status = element("div", { role: "status", class: "xpu-said" });
  const stage = element("div", { class: "xpu-stage" });
  const tip = element("div", { class: "xpu-tip", hidden: "" });
  const lasso = button("lasso", "Lasso", () => {
    const pressed = lasso.getAttribute("aria-pressed") !== "true";
    lasso.setAttribute("aria-pressed", String(pressed));
  });
  lasso.setAttribute("aria-pressed", "false");
  lasso.title = "draw around points to select them; Escape selects none";
  const root = element(
    "div",
    { class: "xpu", role: "group", "aria-label": title },
    element("style", {}, model.get("css")),
    element("div", { class: "xpu-sliders" }, ...Object.values(sliders).map(({ root }) => root)),
    element("div", { class: "xpu-buttons", role: "toolbar", "aria-label": "Iterations" }, ...buttons, lasso, ...(iterates ? [stop] : [])),
    stage,
    status,
    start,
  );
  zoomable(stage, ask); // first, because it keeps its clicks from the centres
  selectable(stage, () => lasso.getAttribute("aria-pressed") === "true", ask);
  const pointer = pointing(stage, tip, ask);
  movable(stage, ask);
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    pointer.leave();
    if (model.get("state").selected) ask("select", null);
  });
  const hear = ({ row }) => pointer.answer(row);
  model.on("msg:custom", hear);
  // Letters are shortcuts of the notebook (d, d deletes the cell). The notebook ignores them if the focused element has
  // this attribute. Shortcuts with Ctrl, Alt or the command key still work.
  const guard = (event) => {
    if (!root.contains(event.target)) return;
    const ours = !event.ctrlKey && !event.metaKey && !event.altKey;
    event.target.toggleAttribute("data-lm-suppress-shortcuts", ours);
  };
  window.addEventListener("keydown", guard, true);

  const label = (center, x, y) => {
    const number = center.dataset.center;
    center.dataset.at = `${x} ${y}`;
    center.setAttribute("tabindex", "0");
    center.setAttribute("role", "button");
    center.setAttribute("aria-label", `Centre ${number} at ${x.toPrecision(3)}, ${y.toPrecision(3)}; arrow keys move it`);
  };

  let shown = null;
  const show = async () => {
    const state = model.get("state");
    const url = URL.createObjectURL(new Blob([model.get("png")], { type: "image/png" }));
    const image = new Image();
    image.src = url;
    await image.decode().catch(() => null); // else the picture would be blank while the new one is decoded
    if (model.get("state") !== state) return URL.revokeObjectURL(url); // there is a newer one
    const focused = document.activeElement?.closest?.("[data-center]");
    const number = focused && stage.contains(focused) ? focused.dataset.center : null;
    const open = stage.querySelector("details")?.open;
    const inPlot = document.activeElement && document.activeElement === stage.querySelector("svg.xpu-plot");
    pointer.redraw(state.html);
    stage.querySelector("image").setAttribute("href", url);
    // A screen reader does not read the parts of an image, but these parts can be moved.
    const plot = stage.querySelector("svg.xpu-plot");
    plot.setAttribute("role", "group");
    plot.setAttribute("tabindex", "0");
    plot.setAttribute("aria-label", `${plot.getAttribute("aria-label")} Arrow keys show the row that is nearest to a cross.`);
    if (shown) URL.revokeObjectURL(shown);
    shown = url;
    stage.querySelectorAll("[data-center]").forEach((center, j) => label(center, ...state.centers[j]));
    if (open) stage.querySelector("details").open = true;
    if (inPlot) plot.focus({ preventScroll: true });
    pointer.again();
    if (number !== null) stage.querySelector(`[data-center="${number}"]`)?.focus({ preventScroll: true });
    for (const [name, { set }] of Object.entries(sliders)) {
      // While the user moves a slider, an update of the picture must not move it back.
      if (asked.has(name) && asked.get(name) !== state[name]) continue;
      asked.delete(name);
      set(state[name]);
    }
    play.setAttribute("aria-pressed", String(state.playing));
    play.textContent = state.playing ? "Pause" : "Play";
    stop.disabled = !state.busy;
    start.hidden = !state.stopped;
    // During play, a screen reader would read each iteration.
    status.setAttribute("aria-live", state.busy ? "off" : "polite");
    status.textContent = `${state.line}\n${state.message}`;
  };
  model.on("change:state", show);
  show();

  // The standing picture, which is the output below, is hidden as long as this element exists.
  const living = `xpu-live-${model.get("name")}`;
  root.classList.add(living);
  document.documentElement.classList.add(living);
  el.append(root);
  return () => {
    model.off("change:state", show);
    model.off("msg:custom", hear);
    window.removeEventListener("keydown", guard, true);
    if (shown) URL.revokeObjectURL(shown);
    root.remove();
    if (!document.querySelector(`.xpu.${living}`)) document.documentElement.classList.remove(living);
  };
};

export default { render };
