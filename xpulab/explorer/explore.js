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
  const write = () => {
    const [, text] = options[input.value];
    output.textContent = text;
    input.setAttribute("aria-valuetext", text);
  };
  input.addEventListener("input", () => {
    write();
    ask(name, options[input.value][0]);
  });
  const set = (value) => {
    input.value = options.findIndex(([each]) => each === value);
    write();
  };
  return { root: element("label", {}, element("span", {}, label), input, output), set };
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

const placeOf = (center) => {
  const { e, f } = center.transform.baseVal.consolidate().matrix;
  return { x: e, y: f };
};

const nearest = (plot, at) => {
  const distance = (center) => Math.hypot(placeOf(center).x - at.x, placeOf(center).y - at.y);
  return [...plot.querySelectorAll("[data-center]")].sort((a, b) => distance(a) - distance(b))[0];
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

  const { names, points, clusters, paces } = model.get("choices");
  const features = names.map((name, number) => [number, name]);
  const sliders = {
    k: slider("k", "Clusters", clusters.map((k) => [k, String(k)]), ask),
    points: slider("points", "Points", points.map((n) => [n, n.toLocaleString("en-US")]), ask),
    x: slider("x", "Across", features, ask),
    y: slider("y", "Up", features, ask),
    pace: slider("pace", "Speed", paces.map((pace) => [pace, `${pace} a second`]), ask),
  };
  const play = button("play", "Play", () => ask("play", play.getAttribute("aria-pressed") !== "true"));
  const buttons = [
    button("restart", "New start", ask),
    button("step", "One iteration", ask),
    play,
    button("reset", "Reset", ask),
    button("elbow", "Elbow", ask),
  ];
  const stop = button("stop", "Stop", ask);
  const start = button("start", "Start", ask);
  start.hidden = true;
  // A screen reader reads this: a summary of the state, and errors.
  const status = element("div", { role: "status", class: "xpu-said" });
  const stage = element("div", { class: "xpu-stage" });
  const root = element(
    "div",
    { class: "xpu", role: "group", "aria-label": "k-means explorer" },
    element("style", {}, model.get("css")),
    element("div", { class: "xpu-sliders" }, ...Object.values(sliders).map(({ root }) => root)),
    element("div", { class: "xpu-buttons", role: "toolbar", "aria-label": "Iterations" }, ...buttons, stop),
    stage,
    status,
    start,
  );
  movable(stage, ask);
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
    stage.innerHTML = state.html;
    stage.querySelector("image").setAttribute("href", url);
    // A screen reader does not read the parts of an image, but these parts can be moved.
    stage.querySelector("svg.xpu-plot").setAttribute("role", "group");
    if (shown) URL.revokeObjectURL(shown);
    shown = url;
    stage.querySelectorAll("[data-center]").forEach((center, j) => label(center, ...state.centers[j]));
    if (open) stage.querySelector("details").open = true;
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
    window.removeEventListener("keydown", guard, true);
    if (shown) URL.revokeObjectURL(shown);
    root.remove();
    if (!document.querySelector(`.xpu.${living}`)) document.documentElement.classList.remove(living);
  };
};

export default { render };
