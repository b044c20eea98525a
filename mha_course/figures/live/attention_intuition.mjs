// Chapter 1: a trained model looks at a cluttered picture. Where it looks decides what it reads, and the reader may say where.
import { balance, button, choice, clamp, grid, h, number, sentence, set, shade, toggle } from "./kit.mjs";
import { dot, mix, softmax, sum } from "./maths.mjs";
import { FINDER, PICTURES } from "./attention_intuition_weights.mjs";

const SIDE = 28; // rows and columns of a picture, in pixels
const PATCH = 8; // of a patch
const STEP = 4; // from one place to the next
const PLACES = 6; // rows and columns of places

const inRows = (list, width) => Array.from({ length: list.length / width }, (_, row) => list.slice(row * width, (row + 1) * width));
const isAt = (place, row, column) => place[0] === row && place[1] === column;

const fromLetters = (letters) =>
  Array.from(
    letters.replace(/[a-z]/g, (run) => "@".repeat(run.charCodeAt(0) - 96)),
    (letter) => (letter.charCodeAt(0) - 64) / 16,
  );
const fromBytes = ([scale, bytes]) =>
  Array.from(Int8Array.from(atob(bytes), (letter) => letter.charCodeAt(0)), (whole) => whole * scale);

const NETWORKS = Object.fromEntries(
  Object.entries(FINDER).map(([part, layers]) => [
    part,
    layers.map((layer) => {
      const [weight, bias] = layer.map(fromBytes);
      return { weight: inRows(weight, weight.length / bias.length), bias };
    }),
  ]),
);

/** Send a vector through one of the two networks, "score" or "read": two linear layers, and a ReLU between them. */
export function network(part, vector) {
  const [first, second] = NETWORKS[part];
  const linear = ({ weight, bias }, x) => weight.map((row, i) => dot(row, x) + bias[i]);
  return linear(second, linear(first, vector).map((x) => Math.max(0, x)));
}

/** One of the stored pictures, as rows of ink from 0 to 1, with its digit at a place, [row, column]; null leaves it out. */
export function pictureWith(index, place) {
  const { ink, clutter } = PICTURES[index];
  const picture = inRows(fromLetters(clutter), SIDE);
  if (place)
    inRows(fromLetters(ink), PATCH).forEach((row, i) => picture[place[0] * STEP + i].splice(place[1] * STEP, PATCH, ...row));
  return picture;
}

/** What there is to see at each of the 36 places of a picture, row by row: a list of 64 pixels each. */
export const cutIntoPatches = (picture) =>
  Array.from({ length: PLACES ** 2 }, (_, i) => [Math.floor(i / PLACES) * STEP, (i % PLACES) * STEP]).map(([top, left]) =>
    picture.slice(top, top + PATCH).flatMap((row) => row.slice(left, left + PATCH)),
  );

/**
 * Look at a picture and read it. The weights come from the model's scores (`look` is "model"), or all places weigh the same
 * ("everywhere"), or the place of the window alone counts ("window").
 */
export function lookAt(picture, look = "model", window = [0, 0]) {
  const patches = cutIntoPatches(picture);
  const scores = patches.map((patch) => network("score", patch)[0]);
  const weights =
    look === "model"
      ? softmax(scores)
      : scores.map((_, i) => (look === "everywhere" ? 1 / scores.length : Number(i === window[0] * PLACES + window[1])));
  const glimpse = mix(weights, patches);
  return { patches, scores, weights, glimpse, likely: softmax(network("read", glimpse)) };
}

/** How much of the attention falls on each block of 4 × 4 pixels, 7 rows of 7: patches overlap, so each block lies in up to four. */
export const coverage = (weights) =>
  Array.from({ length: PLACES + 1 }, (_, row) =>
    Array.from({ length: PLACES + 1 }, (_, column) =>
      sum(weights.filter((_, i) => [row - Math.floor(i / PLACES), column - (i % PLACES)].every((past) => past === 0 || past === 1))),
    ),
  );

// Paper stays light in the dark theme, as in the book's other figures, so its colours are those of weights.
const PAPER = shade(0);
const DARKEST = shade(1).background;
const FULL = 0.62; // how far along the scale a weight of 1 is drawn: ink has to be seen on it
const ZOOM = 10;

/** A sheet of paper of so many pixels: `draw(rows)` puts ink on it; what goes into `below` lies under the ink. */
function sheet(side, attributes) {
  const levels = Array.from({ length: 16 }, (_, level) => h("path", { opacity: (level + 1) / 16 }));
  const below = h("g", {});
  const size = side * ZOOM;
  const svg = h(
    "svg",
    { viewBox: `0 0 ${size} ${size}`, width: size, height: size, ...attributes },
    h("rect", { width: size, height: size, fill: PAPER.background }),
    below,
    h("g", { transform: `scale(${ZOOM})`, fill: PAPER.color, "shape-rendering": "crispEdges" }, ...levels),
  );
  const draw = (rows) =>
    levels.forEach((path, level) => {
      const inked = rows.flatMap((row, y) => row.map((ink, x) => (Math.round(16 * ink) === level + 1 ? `M${x} ${y}h1v1h-1z` : "")));
      set(path, { d: inked.join("") });
    });
  return { svg, below, draw };
}

const words = ([row, column]) => `row ${row}, column ${column}`;
const DIGITS = Array.from({ length: 10 }, (_, digit) => `${digit}`);
const LINES = Array.from({ length: PLACES }, (_, i) => `${i}`);

export const figure = {
  name: "attention-intuition",
  label: "Where a trained model looks in a cluttered picture",
  build(root, model) {
    const ownPlace = () => PICTURES[model.get("picture")].place;
    const digitPlace = () => (model.get("without_digit") ? null : (model.get("digit_place") ?? ownPlace()));
    let picture, found, best, read;
    model.bind(() => {
      picture = pictureWith(model.get("picture"), digitPlace());
      found = lookAt(picture, model.get("look"), model.get("window"));
      best = found.weights.indexOf(Math.max(...found.weights));
      read = found.likely.indexOf(Math.max(...found.likely));
    });

    // ---- the picture, and the window on it
    const large = sheet(SIDE, { role: "group", "aria-label": "The picture, with the weights in blue, and a window that can be moved" });
    const blocks = inRows(Array.from({ length: (PLACES + 1) ** 2 }, () => h("rect", { width: 40, height: 40 })), PLACES + 1);
    blocks.forEach((row, y) => row.forEach((block, x) => set(block, { x: 40 * x, y: 40 * y })));
    large.below.append(...blocks.flat());
    const frames = h("path", { fill: "none", stroke: DARKEST, "stroke-width": 2 });
    const frame = { x: 2, y: 2, width: PATCH * ZOOM - 4, height: PATCH * ZOOM - 4 };
    const handle = h(
      "g",
      { tabindex: 0, role: "slider", "aria-roledescription": "window", "aria-label": "window", class: "mha-attention-intuition-window" },
      h("rect", { ...frame, fill: "transparent", stroke: PAPER.color, "stroke-width": 4 }),
      h("rect", { ...frame, fill: "none", stroke: balance(1, 1).background, "stroke-width": 4, "stroke-dasharray": "8 6" }),
    );
    large.svg.append(frames, handle);
    const moveTo = (place) => {
      const window = place.map((line) => clamp(line, 0, PLACES - 1));
      if (!isAt(model.get("window"), ...window)) model.set({ window });
    };
    const under = (event) => {
      const box = large.svg.getBoundingClientRect();
      const far = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
      return far.map((share) => Math.round((share * SIDE - PATCH / 2) / STEP));
    };
    set(large.svg, {
      onpointerdown: (event) => {
        if (event.pointerType === "touch" && !handle.contains(event.target)) return; // the page may be scrolled from here
        event.preventDefault();
        large.svg.setPointerCapture(event.pointerId);
        handle.focus({ preventScroll: true });
        moveTo(under(event));
      },
      onpointermove: (event) => large.svg.hasPointerCapture(event.pointerId) && moveTo(under(event)),
      onclick: (event) => moveTo(under(event)),
    });
    set(handle, {
      ontouchstart: (event) => event.preventDefault(), // Chromium heeds no touch-action on a part of an SVG
      onkeydown: (event) => {
        const far = PLACES;
        const way = {
          ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
          Home: [0, -far], End: [0, far], PageUp: [-far, 0], PageDown: [far, 0],
        }[event.key];
        if (!way) return;
        event.preventDefault();
        moveTo(model.get("window").map((line, axis) => line + way[axis]));
      },
    });

    // ---- what is seen through the window, the glimpse, and what is read from it
    const patch = sheet(PATCH, { role: "img", "aria-label": "The patch in the window" });
    const glimpse = sheet(PATCH, { role: "img", "aria-label": "The glimpse" });
    const inWindow = h("p", { class: "mha-note" });
    const likely = grid({ caption: "What it reads", corner: "digit", rows: DIGITS, columns: ["how likely"] });
    const bars = likely.data.map(([cell]) => {
      const bar = h("span", {});
      cell.prepend(h("span", { class: "mha-attention-intuition-bar" }, bar));
      return bar;
    });
    const scores = grid({ caption: "scores: row and column of the place", rows: LINES, columns: LINES });
    const weights = grid({ caption: "weights: row and column of the place", rows: LINES, columns: LINES });

    // ---- what goes round about
    const turn = (by) => {
      const next = (model.get("picture") + by + PICTURES.length) % PICTURES.length;
      model.set({ picture: next, digit_place: null, without_digit: false });
    };
    const which = h("span", { class: "mha-attention-intuition-which" });
    const note = (text) => h("p", { class: "mha-note" }, text);
    const said = sentence(model, () => {
      const top = [Math.floor(best / PLACES), best % PLACES];
      const lies = digitPlace();
      const where = !lies ? "" : isAt(lies, ...top) ? ", where the digit lies" : `; the digit lies at ${words(lies)}`;
      const largest = `${number(found.weights[best])}, is at ${words(top)}${where}.`;
      const looked = {
        model: lies ? `The largest weight, ${largest}` : `No digit, but the weights still sum to 1: the largest, ${largest}`,
        window: `All the weight is at your window, ${words(top)}${where}.`,
        everywhere: "All 36 places weigh the same, 0.03: the glimpse is a blur. (The middle is bluer, as more places overlap there.)",
      }[model.get("look")];
      const truth = PICTURES[model.get("picture")].digit;
      const verdict = !lies ? " all the same" : read === truth ? ", rightly" : `, wrongly: it is ${truth}`;
      return `${looked} It reads ${read} (${number(found.likely[read])})${verdict}.`;
    });
    set(said, { class: "mha-attention-intuition-said" });
    root.append(
      h("p", { class: "mha-title" }, "Where a trained model looks, and what it reads there"),
      h("p", { class: "mha-how" }, "Drag the window, or press where it should be, or move to it with Tab and use the arrow keys."),
      h(
        "div",
        { class: "mha-controls" },
        h("div", { class: "mha-attention-intuition-turn" }, button(model, "Previous", () => turn(-1)), which, button(model, "Next", () => turn(1))),
        choice(model, {
          name: "look", label: "Weights:",
          options: [["model", "the model’s own"], ["everywhere", "the same everywhere"], ["window", "all at my window"]],
        }),
      ),
      note("Blue: the weights; framed: a weight of 0.10 or more. Dashed: your window. Rows and columns count from 0, from the top left."),
      h(
        "div",
        { class: "mha-row" },
        h(
          "div",
          {},
          note("The picture"),
          large.svg,
          h(
            "div",
            { class: "mha-controls" },
            button(model, "Lay the digit here", () => model.set({ digit_place: model.get("window"), without_digit: false })),
            toggle(model, { name: "without_digit", label: "take it out" }),
          ),
        ),
        h("div", { class: "mha-attention-intuition-small" }, note("In your window"), patch.svg, inWindow, note("The glimpse"), glimpse.svg),
        likely.element,
      ),
      said,
      h("details", {}, h("summary", {}, "All 36 scores and weights in numbers"), h("div", { class: "mha-row" }, scores.element, weights.element)),
    );

    model.bind(() => {
      const window = model.get("window");
      const here = window[0] * PLACES + window[1];
      large.draw(picture);
      coverage(found.weights).forEach((row, y) => row.forEach((part, x) => set(blocks[y][x], { fill: shade(FULL * part).background })));
      const heavy = found.weights.map((weight, i) => [weight, i]).filter(([weight]) => weight >= 0.1);
      set(frames, { d: heavy.map(([, i]) => `M${(i % PLACES) * 40} ${Math.floor(i / PLACES) * 40}h80v80h-80z`).join("") });
      const used = model.get("look") === "model";
      const said = [used ? `score ${number(found.scores[here], 1)}` : "score not used", `weight ${number(found.weights[here])}`];
      set(handle, {
        transform: `translate(${window[1] * 40} ${window[0] * 40})`,
        "aria-valuemin": 0, "aria-valuemax": PLACES ** 2 - 1, "aria-valuenow": here, "aria-valuetext": `${words(window)}: ${said.join(", ")}`,
      });
      patch.draw(inRows(found.patches[here], PATCH));
      glimpse.draw(inRows(found.glimpse, PATCH));
      inWindow.replaceChildren(words(window), h("br"), said[0], h("br"), said[1]);
      which.textContent = `picture ${model.get("picture") + 1} of ${PICTURES.length}`;
      likely.fill(found.likely.map((part) => [part]));
      bars.forEach((bar, digit) => set(bar, { style: `width: ${(100 * found.likely[digit]).toFixed(1)}%` }));
      scores.element.querySelector("caption").textContent = `scores${used ? "" : ", not used now"}: row and column of the place`;
      scores.fill(inRows(found.scores, PLACES), (score) => ({ text: number(score, 1) }));
      weights.fill(inRows(found.weights, PLACES), shade);
    });
  },
};
