// Shows what a page has missed of the outputs of reports: after it was loaded again, in a second tab, after a pause of
// the connection. It has no view. The kernel's part is pages.py, which says what the classes of an output mean.

const SILENCE = 12; // seconds without a sign of life after which a running report says so
const LATE = 3; // seconds without an update after which the page asks for a running report

const placed = (element) => {
  const [, id, drawn] = /\bxpu-drawn-(\w+)-(\d+)/.exec(element.className);
  return { element, id, drawn: Number(drawn), runs: element.querySelector(".xpu-as-of") !== null };
};

// Write a line below a running report, or remove it.
const say = (element, text) => {
  const line = element.querySelector(":scope > .xpu-said") ?? document.createElement("div");
  if (!text) return line.remove();
  if (line.textContent === text) return;
  line.className = "xpu xpu-said";
  line.setAttribute("role", "status");
  line.textContent = text;
  element.append(line);
};

const time = (element) => /\d\d:\d\d:\d\d/.exec(element.querySelector(".xpu-as-of").textContent)?.[0] ?? "";
const gone = (element) => `The kernel of this report is gone; the report is that of ${time(element)}.`;

const initialize = ({ model }) => {
  const kernel = model.get("kernel");
  const restored = !model.get("fresh");
  const known = new Map(); // id -> the latest drawing that is in the page, and when it came
  const latest = new Map(); // id -> what the kernel has sent
  let [heard, asked, lost] = [Date.now(), 0, false];
  const lose = () => (lost = true); // until something is heard again
  const passed = (since) => (Date.now() - since) / 1000;

  // Of a live report, nobody needs to know how to see its end.
  const style = document.createElement("style");
  style.textContent = `.xpu-of-${kernel} .xpu-as-of{display:none}`;
  document.head.append(style);

  const replace = ({ element, id, drawn }) => {
    const html = latest.get(id)?.html;
    if (!html || latest.get(id).drawn <= drawn) return;
    const parsed = document.createElement("template");
    parsed.innerHTML = html;
    element.replaceWith(parsed.content);
  };

  const look = () => {
    document.querySelectorAll(`.xpu-of-${kernel}`).forEach((element) => replace(placed(element)));
    const present = [...document.querySelectorAll(`.xpu-of-${kernel}`)].map(placed);
    for (const { id, drawn } of present) {
      const before = known.get(id);
      if (before && drawn <= before.drawn) continue;
      if (before || !restored) heard = Date.now(); // an update of a cell's output
      known.set(id, { ...before, drawn, since: Date.now() });
    }
    const running = present.filter(({ runs }) => runs);
    const late = present.filter(({ element, id, runs }) => {
      const { since, told, over } = known.get(id);
      if (over) return false;
      return runs ? passed(since) > LATE : restored && !told && !element.classList.contains("xpu-final");
    });
    if (late.length && passed(asked) > LATE) {
      asked = Date.now();
      try {
        model.send({ ask: late.map(({ id, drawn }) => [id, drawn]) });
      } catch {
        lose(); // JupyterLab has closed the channel, because the kernel has died
      }
    }
    const silent = passed(heard) > SILENCE;
    style.disabled = lost || silent;
    for (const { element } of running) {
      const text = `Nothing was heard of the kernel for ${Math.round(passed(heard))} s.`;
      say(element, lost ? gone(element) : silent ? text : "");
    }
    // A notebook has one kernel: the running reports of others in it are from before.
    const here = new Set(present.map(({ element }) => element.closest(".jp-Notebook")));
    here.delete(null);
    for (const notebook of here) {
      for (const element of notebook.querySelectorAll(`.xpu-report:not(.xpu-of-${kernel}):has(.xpu-as-of)`)) {
        say(element, gone(element));
      }
    }
  };

  const hear = ({ outputs = [] }) => {
    [heard, lost] = [Date.now(), false];
    for (const { id, drawn, html, over } of outputs) {
      if (html) latest.set(id, { drawn, html });
      known.set(id, { ...known.get(id), told: true, over });
    }
    if (outputs.length) look();
  };
  model.on("msg:custom", hear);
  model.on("comm_live_update", lose);
  const timer = setInterval(look, 1000);
  return () => {
    clearInterval(timer);
    model.off("msg:custom", hear);
    model.off("comm_live_update", lose);
    style.remove();
  };
};

export default { initialize };
