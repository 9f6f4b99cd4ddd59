// The board of a cluster in a browser. The state is in Python: this script shows it, and sends the user's requests.
// timeline.js, which follows in the same module, draws the timeline.

const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

const button = (label, press, attributes = {}) => {
  const made = element("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", press);
  return made;
};

const section = (title, ...children) => element("details", { open: "" }, element("summary", {}, title), ...children);

// Replace HTML from Python, if it has changed, and leave the focus and what is chosen where they are.
const replace = (place, html, chosen) => {
  if (place.shown === html) return;
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.call : null;
  place.innerHTML = html;
  place.shown = html;
  for (const box of place.querySelectorAll("input[data-call]")) {
    box.checked = chosen?.has(Number(box.dataset.call)) ?? false;
    if (box.dataset.call === focused) box.focus({ preventScroll: true });
  }
};

const save = (name, type, data) => {
  const url = URL.createObjectURL(new Blob([data], { type }));
  const link = element("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};

// The boards that a notebook has shown, from the first to the latest.
const boardsOf = (notebook) => notebook.dataset.xpuBoards?.split(" ") ?? [];

const render = ({ model, el }) => {
  const ask = (name, value = null) => {
    try {
      model.send({ name, value });
    } catch {
      lose(); // JupyterLab has closed the channel, because the kernel has died
    }
  };
  const name = model.get("name");
  const inPanel = () => root.closest(".jupyterlab-sidecar") !== null;
  const inLab = document.getElementById("jp-main-dock-panel") !== null;
  const panel = () => document.querySelector(`.jupyterlab-sidecar [data-xpu-board="${name}"]`);

  const chosen = new Set();
  const number = String(model.get("panel"));
  let [opened, known, beheld, shutting, awaited, ended] = [false, false, false, false, false, false];
  const places = Object.fromEntries(
    ["running", "engines", "history", "overlay", "names"].map((each) => [each, element("div")]),
  );
  const stop = button("Stop", () => ask("stop"));
  const status = element("div", { role: "status", class: "xpu-said" });
  const gone = element("div", { role: "status", class: "xpu-note", hidden: "" });
  let [heard, lost] = [new Date(), false];
  const lose = () => {
    lost = true; // until something is heard again
    gone.textContent = `The kernel of this board is gone; the board is that of ${heard.toTimeString().slice(0, 8)}.`;
    gone.hidden = false;
    stop.disabled = true;
  };
  const drawing = timeline(ask);
  const bar = (label, ...buttons) =>
    element("div", { class: "xpu-buttons", role: "toolbar", "aria-label": label }, ...buttons);
  const hint = element("div", { class: "xpu-dim" });
  const beside = button("Open beside the notebook", () => ask("panel"));
  const whole = element(
    "div",
    { class: "xpu-whole-board" },
    section("Running", places.running, bar("The running call", stop)),
    section("Engines", places.engines),
    section("History", places.history, bar("Export the history", button("History as CSV", () => ask("export", "history"))), places.overlay),
    section("Timeline", drawing.root),
    section("Names on the ranks", bar("Names", button("Refresh names", () => ask("names"))), places.names),
  );
  const elsewhere = element("div", {}, "The board stands beside the notebook.");
  const root = element(
    "div",
    { class: "xpu xpu-board", role: "group", "aria-label": "Board of the cluster", "data-xpu-board": name },
    element("style", {}, model.get("css")),
    gone,
    whole,
    elsewhere,
    bar("Place of the board", beside),
    hint,
    status,
  );

  places.history.addEventListener("change", (event) => {
    const number = Number(event.target.dataset.call);
    if (event.target.checked) chosen.add(number);
    else chosen.delete(number);
    ask("compare", [...chosen]);
  });
  // Letters are shortcuts of the notebook. It ignores them if the focused element has this attribute.
  const guard = (event) => {
    if (root.contains(event.target))
      event.target.toggleAttribute("data-lm-suppress-shortcuts", !event.ctrlKey && !event.metaKey && !event.altKey);
  };
  window.addEventListener("keydown", guard, true);

  // The extension opens the panel again by itself when a page is loaded. It cannot close it: this is what a user does.
  const shut = () => {
    const { id } = root.closest(".jupyterlab-sidecar");
    const icon = document.querySelector(`[data-id="${id}"] .lm-TabBar-tabCloseIcon`);
    if (!icon) return;
    const { x, y, width, height } = icon.getBoundingClientRect();
    const middle = { clientX: x + width / 2, clientY: y + height / 2, bubbles: true, cancelable: true };
    shutting = true;
    for (const kind of ["pointerdown", "pointerup"]) icon.dispatchEvent(new PointerEvent(kind, middle));
  };
  // A panel ends with its notebook, and with its kernel once a new board is there; it stays closed if a user closed it.
  const follow = () => {
    const notebooks = [...document.querySelectorAll(".jp-NotebookPanel[data-xpu-boards]")];
    const notebook = notebooks.find((each) => boardsOf(each).includes(name));
    const over = notebook ? lost && boardsOf(notebook).at(-1) !== name : known;
    known ||= notebook !== undefined;
    beheld = true;
    if (over || sessionStorage.getItem(name) === number) shut();
  };
  const placed = () => {
    if (!root.isConnected) {
      if (beheld) return end(); // the front end does not say that a panel was closed
      if (!awaited) requestAnimationFrame(() => [(awaited = false), placed()]); // until the page has the board
      awaited = true;
      return;
    }
    const notebook = root.closest(".jp-NotebookPanel");
    if (notebook && !boardsOf(notebook).includes(name)) notebook.dataset.xpuBoards = [...boardsOf(notebook), name].join(" ");
    if (inPanel() && !shutting) follow();
    const away = !inPanel() && panel() !== null;
    whole.hidden = away;
    elsewhere.hidden = !away;
    beside.parentElement.hidden = inPanel() || away || !inLab || model.get("advice") !== "";
    hint.textContent = inLab && !away && !inPanel() ? model.get("advice") : "";
    hint.hidden = hint.textContent === "";
    if (!opened && !inPanel() && inLab && model.get("opens") && model.get("advice") === "") {
      opened = true;
      ask("panel");
    }
  };
  const show = () => {
    for (const [each, place] of Object.entries(places)) replace(place, model.get(each), chosen);
    stop.disabled = lost || !model.get("busy");
    if (status.textContent !== model.get("message")) status.textContent = model.get("message");
    placed();
  };
  const hear = () => {
    [heard, lost] = [new Date(), false];
    gone.hidden = true;
    show();
  };
  const showTimeline = () => drawing.show(model.get("about"), model.get("spans"));
  const showCalls = () => drawing.offer(model.get("calls"));
  const receive = (message, buffers) => {
    // One view is enough: the one in the panel, or else the first one in the page.
    if (message.name === "file" && document.querySelector(`[data-xpu-board="${name}"]`) === root)
      save(message.file, message.type, buffers[0]);
  };
  model.on("change:about", showTimeline);
  model.on("change:calls", showCalls);
  model.on("msg:custom", receive);
  model.on("change", hear);
  model.on("comm_live_update", lose);
  el.classList.add("xpu-live"); // the static HTML is hidden as long as this element lives
  el.append(root);
  show();
  showCalls();
  showTimeline();
  ask("views", 1);
  const leave = () => ask("views", -1);
  const hide = () => (beheld && !root.isConnected ? end() : leave());
  window.addEventListener("pagehide", hide);
  const watch = setInterval(placed, 1000); // the panel may be closed while nothing changes
  const end = () => {
    if (ended) return;
    ended = true;
    clearInterval(watch);
    model.off("change:about", showTimeline);
    model.off("change:calls", showCalls);
    model.off("msg:custom", receive);
    model.off("change", hear);
    model.off("comm_live_update", lose);
    window.removeEventListener("keydown", guard, true);
    window.removeEventListener("pagehide", hide);
    drawing.close();
    root.remove();
    if (beheld && !shutting) sessionStorage.setItem(name, number);
    leave();
  };
  return end;
};

export default { render };
