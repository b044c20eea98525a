// What figures are drawn with: elements, controls, tables, axes, and the state that a page or a notebook keeps.

// ---- elements -------------------------------------------------------------------------------------------------------

const SVG_TAGS = new Set("svg g path line rect circle ellipse polygon polyline text tspan".split(" "));

/**
 * Make an HTML or SVG element. An attribute that is a function is listened to (`onclick`); null, undefined and false
 * leave an attribute out.
 */
export function h(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  set(element, attributes);
  element.append(...children);
  return element;
}

/** Change attributes of an element, as `h` sets them. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : value);
  }
}

/** Write a number with so many decimals, with a true minus sign, and never "−0.00". */
export function number(value, decimals = 2) {
  const text = Math.abs(value).toFixed(decimals);
  return value < 0 && Number(text) !== 0 ? `−${text}` : text;
}

/** Write a vector, "(1.00, −0.50)"; `write` writes each of its numbers. */
export const vector = (numbers, write = (x) => number(x)) => `(${numbers.map(write).join(", ")})`;

/** Put a number between two limits. */
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// ---- state ----------------------------------------------------------------------------------------------------------

/** A figure's state. A page keeps it here; in a notebook Python has the same and may change it too. */
export class Model {
  constructor(source, root) {
    this.source = source;
    this.drawers = [];
    this.visible = true;
    this.late = false;
    this.closed = false;
    this.groups = 0;
    this.id = Math.random().toString(36).slice(2);
    this.observer = new IntersectionObserver((entries) => {
      this.visible = entries.at(-1).isIntersecting;
      if (this.visible && this.late) this.refresh();
    });
    this.observer.observe(root);
  }

  get(name) {
    return this.source.get(name);
  }

  /** Take over new values, `{name: value}`, and draw. */
  set(changes) {
    this.source.set(changes);
    this.refresh();
  }

  /** A name for a group of radio buttons which no other has: in a notebook each figure runs a copy of this module. */
  group() {
    return `mha-${this.id}-${++this.groups}`;
  }

  /** End what goes on: the figure is no longer shown. */
  close() {
    this.closed = true;
    this.observer.disconnect();
  }

  /** Have `draw()` called after building and whenever the state has changed. */
  bind(draw) {
    this.drawers.push(draw);
  }

  /** Draw anew; a figure out of sight waits until it is seen. */
  refresh() {
    this.late = !this.visible;
    if (this.visible) this.drawers.forEach((draw) => draw());
  }

  /** Fetch one piece of the figure's data, as a Uint8Array; it is kept for the next time. */
  piece(index) {
    this.pieces ??= new Map();
    if (!this.pieces.has(index)) {
      const coming = this.source.piece(index);
      coming.catch(() => this.pieces.delete(index)); // so that the next try asks again
      this.pieces.set(index, coming);
    }
    return this.pieces.get(index);
  }
}

/** The state of a figure in a page: plain values, and data from scripts that lie beside the figure's own. */
function pageSource(state, name) {
  return {
    get: (key) => state[key],
    set: (changes) => Object.assign(state, changes),
    piece: (index) =>
      new Promise((resolve, reject) => {
        // A script, as a page that is opened from the disk may fetch nothing else.
        globalThis.mhaPieces ??= {};
        const script = h("script", { src: new URL(`${name}-${index}.js`, SCRIPT) });
        script.onload = () => {
          const text = globalThis.mhaPieces[`${name}-${index}`];
          if (!text) return script.onerror(); // what came is something else, a page that says 404 for example
          delete globalThis.mhaPieces[`${name}-${index}`];
          script.remove();
          resolve(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
        };
        script.onerror = () => {
          script.remove();
          reject(new Error(`The data could not be loaded: ${name}-${index}.js is missing beside the page.`));
        };
        document.head.append(script);
      }),
  };
}

const SCRIPT = typeof document === "undefined" ? null : document.currentScript?.src;

/** The state of a figure in a notebook: the traits of the widget, and data from the kernel. */
function notebookSource(widget) {
  let saving = false;
  const source = {
    changing: false, // by its own page, which draws once all is set
    get: (key) => widget.get(key),
    set: (changes) => {
      source.changing = true;
      for (const [key, value] of Object.entries(changes)) widget.set(key, value);
      source.changing = false;
      // While something is dragged, Python is told once a frame.
      if (!saving) requestAnimationFrame(() => ((saving = false), widget.save_changes()));
      saving = true;
    },
    piece: (index) =>
      new Promise((resolve, reject) => {
        const answer = (message, buffers) => {
          if (message.piece !== index) return;
          widget.off("msg:custom", answer);
          clearTimeout(patience);
          resolve(new Uint8Array(buffers[0].buffer ?? buffers[0], buffers[0].byteOffset ?? 0, buffers[0].byteLength));
        };
        const fail = () => {
          widget.off("msg:custom", answer);
          clearTimeout(patience);
          reject(new Error("The data did not come: the kernel does not answer. Run the cell again."));
        };
        const patience = setTimeout(fail, 30000);
        widget.on("msg:custom", answer);
        try {
          widget.send({ piece: index });
        } catch {
          fail(); // the kernel has been restarted
        }
      }),
  };
  return source;
}

// ---- hosts ----------------------------------------------------------------------------------------------------------

function mount(figure, root, source) {
  const body = h("div", { class: "mha", role: "group", lang: "en", dir: "ltr", "aria-label": figure.label });
  const model = new Model(source, root);
  try {
    figure.build(body, model);
    model.refresh();
  } catch (error) {
    model.close();
    throw error;
  }
  root.replaceChildren(body); // whole and at once: what stood there until now has the same size
  return model;
}

/** Let a page show the figure wherever `<mha-NAME data-state="…">` stands. Until then, or without, its picture stands there. */
export function define(figure) {
  customElements.define(
    `mha-${figure.name}`,
    class extends HTMLElement {
      connectedCallback() {
        if (this.model) return;
        this.model = mount(figure, this, pageSource(JSON.parse(this.dataset.state), figure.name));
      }
    },
  );
}

/** Let a notebook show the figure: what anywidget asks of a module. */
export const widget = (figure) => ({
  render({ model: traits, el }) {
    const source = notebookSource(traits);
    const model = mount(figure, el, source);
    const follow = () => source.changing || model.refresh();
    traits.on("change", follow);
    // JupyterLab would take a plain key for a command of its own: an arrow would leave the figure, a letter insert a cell.
    el.addEventListener("keydown", (event) => {
      const itsOwn = event.ctrlKey || event.metaKey || event.altKey || event.key === "Escape" || (event.shiftKey && event.key === "Enter");
      if (!itsOwn) event.stopPropagation();
    });
    return () => {
      traits.off("change", follow);
      model.close();
    };
  },
});

// ---- words ----------------------------------------------------------------------------------------------------------

/**
 * A sentence that says what the figure shows now: `text()` returns it. It is read out once the reader stops moving.
 */
export function sentence(model, text) {
  const seen = h("p", { class: "mha-sentence" });
  const heard = h("p", { class: "mha-heard", role: "status" });
  let waiting;
  let first = true;
  model.bind(() => {
    const now = text();
    if (now === seen.textContent) return;
    seen.textContent = now;
    clearTimeout(waiting);
    if (!first) waiting = setTimeout(() => (heard.textContent = now), 600);
    first = false;
  });
  return h("div", {}, seen, heard);
}

// ---- controls -------------------------------------------------------------------------------------------------------

/**
 * A slider for one number of the state.
 *
 * `from` and `to` lead from the state to the slider's own scale and back, for a logarithmic one for example; `off()` says
 * when it has no effect.
 */
export function slider(model, { name, label, min, max, step, show = number, from = (x) => x, to = (x) => x, off = () => false }) {
  const input = h("input", { type: "range", min, max, step, oninput: () => model.set({ [name]: to(Number(input.value)) }) });
  const shown = h("output", { "aria-live": "off" }); // the slider itself says its value
  model.bind(() => {
    const value = model.get(name);
    // Its own value would be rounded to the step while the reader moves it.
    if (document.activeElement !== input || to(Number(input.value)) !== value) input.value = from(value);
    shown.textContent = show(value);
    input.setAttribute("aria-disabled", off()); // it keeps the focus
    input.setAttribute("aria-valuetext", show(value));
  });
  return h("label", { class: "mha-slider" }, h("span", {}, label), input, shown);
}

/** A choice among a few: `options` is a list of [value, words]. */
export function choice(model, { name, label, options }) {
  const group = model.group();
  const buttons = options.map(([value, words]) => {
    const input = h("input", { type: "radio", name: group, value, onchange: () => model.set({ [name]: value }) });
    return { value, input, element: h("label", {}, input, h("span", {}, words)) };
  });
  model.bind(() => buttons.forEach(({ value, input }) => (input.checked = value === model.get(name))));
  return h("fieldset", { class: "mha-choice" }, h("legend", {}, label), ...buttons.map(({ element }) => element));
}

/** A choice among many, as a list that opens: `options` is a list of [value, words]; a function gives it anew each time. */
export function menu(model, { name, label, options }) {
  const list = typeof options === "function" ? options : () => options;
  let drawn = "";
  const select = h("select", { onchange: () => model.set({ [name]: list()[select.selectedIndex][0] }) });
  model.bind(() => {
    const now = list();
    if (drawn !== JSON.stringify(now)) select.replaceChildren(...now.map(([, words]) => h("option", {}, words)));
    drawn = JSON.stringify(now);
    select.selectedIndex = now.findIndex(([value]) => value === model.get(name));
  });
  return h("label", { class: "mha-menu" }, h("span", {}, label), select);
}

/** A box to tick, for a state that is true or false. */
export function toggle(model, { name, label }) {
  const input = h("input", { type: "checkbox", onchange: () => model.set({ [name]: input.checked }) });
  model.bind(() => (input.checked = model.get(name)));
  return h("label", { class: "mha-toggle" }, input, h("span", {}, label));
}

/** A button; `off()` says when it can't be pressed. It keeps the focus then, so that the next Tab starts from here. */
export function button(model, label, press, off = () => false) {
  const element = h("button", { type: "button", onclick: () => off() || press() }, label);
  model.bind(() => element.setAttribute("aria-disabled", off()));
  return element;
}

/** Forward, back, and which step it is: `name` counts from 0; `titles` names the steps. */
export function steps(model, { name, titles }) {
  const go = (step) => model.set({ [name]: step });
  const at = () => model.get(name);
  const last = titles.length - 1;
  const dots = titles.map((title, step) =>
    h("button", { type: "button", title, "aria-label": `Step ${step + 1}: ${title}`, onclick: () => go(step) }, `${step + 1}`),
  );
  model.bind(() => dots.forEach((dot, step) => set(dot, { "aria-current": step === at() ? "step" : null })));
  return h(
    "div",
    { class: "mha-steps", role: "group", "aria-label": "Steps" },
    button(model, "Back", () => go(at() - 1), () => at() === 0),
    ...dots,
    button(model, "Next", () => go(at() + 1), () => at() === last),
  );
}

/**
 * Load data on demand: a button, then a bar that fills, then `ready(pieces, held)`, where `held` says whether the focus was there.
 * A failure says why, and the button is back.
 */
export function loader(model, { label, pieces, ready }) {
  const bar = h("progress", { max: pieces.length, value: 0, "aria-label": label, tabindex: -1 });
  const trouble = h("p", { class: "mha-trouble", role: "alert" });
  const ask = h("button", { type: "button", onclick: load }, label);
  const box = h("div", { class: "mha-loader" }, ask, trouble);
  async function load() {
    trouble.textContent = "";
    bar.value = 0;
    const pressed = document.activeElement === ask;
    ask.replaceWith(bar);
    if (pressed) bar.focus(); // the button is gone, and a keyboard's next Tab starts here
    const loaded = [];
    try {
      for (const index of pieces) {
        loaded.push(await model.piece(index));
        bar.value = loaded.length;
      }
    } catch (error) {
      trouble.textContent = error.message;
      const held = document.activeElement === bar;
      bar.replaceWith(ask);
      if (held) ask.focus();
      return;
    }
    const held = document.activeElement === bar;
    box.remove();
    ready(loaded, held);
  }
  return box;
}

// ---- colours --------------------------------------------------------------------------------------------------------

const WEIGHTS = [[243, 246, 250], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]];

/** Background and ink of a cell for a weight in [0, 1], as the book's heatmaps have them. */
export function shade(weight) {
  const place = clamp(weight, 0, 1) * (WEIGHTS.length - 1);
  const low = Math.min(Math.floor(place), WEIGHTS.length - 2);
  const mixed = WEIGHTS[low].map((from, i) => Math.round(from + (place - low) * (WEIGHTS[low + 1][i] - from)));
  return { background: `rgb(${mixed.join(" ")})`, color: weight > 0.71 ? "#fff" : "#000" };
}

/** Background and ink for a number below or above 0: blue below, orange above, stronger the nearer to `limit`. */
export function balance(value, limit) {
  const share = clamp(Math.abs(value) / limit, 0, 1);
  const [end, start] = [value < 0 ? [86, 180, 233] : [230, 159, 0], [246, 246, 246]];
  return { background: `rgb(${start.map((from, i) => Math.round(from + share * (end[i] - from))).join(" ")})`, color: "#000" };
}

// ---- tables ---------------------------------------------------------------------------------------------------------

/**
 * A table of numbers which is the drawing and can be read by everybody.
 *
 * `rows` and `columns` label it. `fill(matrix, look)` writes it: `look(value, row, column)` may return
 * `{text, background, color, class, title}`. With `edit(row, column, value)` the cells are fields to type in.
 */
export function grid({ caption, rows, columns, corner = "", edit = null, step = 0.5 }) {
  const cells = rows.map((row, i) =>
    columns.map((column, j) =>
      edit
        ? h("input", {
            type: "number", step, "aria-label": `${caption}, ${row} ${column}`,
            oninput: (event) => event.target.value !== "" && Number.isFinite(event.target.valueAsNumber) && edit(i, j, event.target.valueAsNumber),
          })
        : document.createTextNode(""),
    ),
  );
  const data = cells.map((line) => line.map((cell) => h("td", {}, cell)));
  const heads = columns.map((column) => h("th", { scope: "col" }, column));
  const labels = rows.map((row) => h("th", { scope: "row" }, row));
  const element = h(
    "div",
    { class: "mha-scroll" },
    h(
      "table",
      {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, corner ? h("th", { scope: "col" }, corner) : h("td", {}), ...heads)),
      h("tbody", {}, ...data.map((line, i) => h("tr", {}, labels[i], ...line))),
    ),
  );
  const fill = (matrix, look = () => ({})) =>
    matrix.forEach((line, i) =>
      line.forEach((value, j) => {
        const { text, background = "", color = "", class: kind, title } = look(value, i, j);
        const cell = cells[i][j];
        if (edit) {
          if (document.activeElement !== cell) cell.value = value;
        } else cell.data = text ?? (typeof value === "number" ? number(value) : value);
        Object.assign(data[i][j].style, { background, color });
        set(data[i][j], { class: kind, title });
      }),
    );
  scrollable(element, caption);
  return { element, fill, data, heads, labels };
}

/** Let the keyboard reach a part that may be wider than its room, as long as it is. */
export function scrollable(element, label) {
  new ResizeObserver(() =>
    set(element, element.scrollWidth > element.clientWidth ? { tabindex: 0, role: "group", "aria-label": label } : { tabindex: null, role: null, "aria-label": null }),
  ).observe(element);
}

// ---- drawings -------------------------------------------------------------------------------------------------------

/** About `count` round numbers between two limits. */
export function ticks([low, high], count = 5) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/**
 * A drawing with two axes. `x` and `y` are their limits. What is drawn belongs into `plot`, at `px(x)`, `py(y)`;
 * `at(event)` gives the values under a pointer. `description` says what the drawing shows.
 */
export function axes({ width = 300, height = 220, x, y, xLabel = "", yLabel = "", description, xTicks = ticks(x), yTicks = ticks(y), group = false }) {
  const [left, right, top, bottom] = [yLabel ? 44 : 30, 10, 10, xLabel ? 38 : 22];
  const px = (value) => left + ((value - x[0]) / (x[1] - x[0])) * (width - left - right);
  const py = (value) => height - bottom - ((value - y[0]) / (y[1] - y[0])) * (height - top - bottom);
  const plot = h("g", {});
  const svg = h(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, width, height, role: group ? "group" : "img", "aria-label": description },
    h(
      "g",
      { class: "mha-axes", "aria-hidden": "true" },
      ...xTicks.map((value) => h("line", { x1: px(value), x2: px(value), y1: top, y2: height - bottom })),
      ...yTicks.map((value) => h("line", { x1: left, x2: width - right, y1: py(value), y2: py(value) })),
      ...xTicks.map((value) => h("text", { x: px(value), y: height - bottom + 14, "text-anchor": "middle" }, tick(value))),
      ...yTicks.map((value) => h("text", { x: left - 5, y: py(value) + 4, "text-anchor": "end" }, tick(value))),
      h("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, xLabel),
      h("text", { transform: `translate(11 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, yLabel),
    ),
    plot,
  );
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    const [across, down] = [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
    return [
      x[0] + ((across - left) / (width - left - right)) * (x[1] - x[0]),
      y[0] + ((height - bottom - down) / (height - top - bottom)) * (y[1] - y[0]),
    ];
  };
  return { svg, plot, px, py, at, x, y, points: [] };
}

const tick = (value) => `${value}`.replace("-", "−");

/** The `d` of a line through points. */
export const line = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/**
 * A point of a drawing that can be dragged, and moved by the arrow keys (with Shift: further) and by Home, End, Page Up and
 * Page Down to the edges. Where several are within reach the nearest is taken, and of those at one place the first made.
 *
 * `get()` and `put([x, y])` are its place in the units of the axes; `shape` is "circle", "square" or "diamond".
 */
export function point(model, drawing, { label, text, kind, get, put, step = 0.1, shape = "circle" }) {
  const outline = { circle: "M-8 0a8 8 0 1 0 16 0a8 8 0 1 0-16 0Z", square: "M-7.5-7.5h15v15h-15Z", diamond: "M0-10l10 10l-10 10l-10-10Z" };
  const handle = h(
    "g",
    { class: `mha-point mha-${kind}`, tabindex: 0, role: "slider", "aria-roledescription": "point", "aria-label": label },
    h("circle", { r: 22, class: "mha-reach" }), // as large as a finger
    h("path", { d: outline[shape] }),
    h("text", { x: 12, y: -9, "aria-hidden": "true" }, text),
  );
  drawing.points.push([handle, get]);
  const move = (x, y) =>
    put([clamp(x, ...drawing.x), clamp(y, ...drawing.y)].map((value) => Math.round(value * 100) / 100));
  set(handle, {
    onpointerdown: (event) => {
      event.preventDefault();
      const [x, y] = drawing.at(event);
      const far = drawing.points.map(([, place]) => (drawing.px(place()[0]) - drawing.px(x)) ** 2 + (drawing.py(place()[1]) - drawing.py(y)) ** 2);
      const [taken] = drawing.points[far.indexOf(Math.min(...far))];
      taken.setPointerCapture(event.pointerId);
      taken.focus();
    },
    onpointermove: (event) => handle.hasPointerCapture(event.pointerId) && move(...drawing.at(event)),
    ontouchstart: (event) => event.preventDefault(), // inside a drawing, Chromium scrolls in spite of touch-action
    onkeydown: (event) => {
      const [x, y] = get();
      const far = step * (event.shiftKey ? 5 : 1);
      const place = {
        ArrowLeft: [x - far, y], ArrowRight: [x + far, y], ArrowUp: [x, y + far], ArrowDown: [x, y - far],
        Home: [drawing.x[0], y], End: [drawing.x[1], y], PageUp: [x, drawing.y[1]], PageDown: [x, drawing.y[0]],
      }[event.key];
      if (!place) return;
      event.preventDefault();
      move(...place);
    },
  });
  model.bind(() => {
    const [x, y] = get();
    set(handle, {
      transform: `translate(${drawing.px(x).toFixed(1)} ${drawing.py(y).toFixed(1)})`,
      "aria-valuemin": drawing.x[0],
      "aria-valuemax": drawing.x[1],
      "aria-valuenow": x,
      "aria-valuetext": `${number(x)}, ${number(y)}`,
    });
  });
  return handle;
}

/** Whether the reader has asked for no motion. */
export const motionless = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/**
 * Run `frame(milliseconds since the last)` for each picture until it returns false or `stop()` is called; a figure out
 * of sight stands still.
 */
export function animation(model, frame) {
  let running = 0;
  let last;
  const next = (now) => {
    const on = !model.closed && (!model.visible || frame(Math.min(now - (last ?? now), 100)) !== false);
    last = now;
    running = on ? (model.visible ? requestAnimationFrame(next) : setTimeout(() => next(performance.now()), 500)) : 0;
  };
  return {
    start: () => running || ((last = undefined), (running = requestAnimationFrame(next))),
    stop: () => (cancelAnimationFrame(running), clearTimeout(running), (running = 0)),
    get running() {
      return running !== 0;
    },
  };
}
