// Chapter 6: what tells a layer where a token stands, in four views of one state.
import { axes, choice, clamp, grid, h, line, number, point, sentence, set, shade, slider, toggle } from "./kit.mjs";
import { dot, norm, sum } from "./maths.mjs";

/** By how many radians a pair of columns turns from one position to the next. */
export const speed = (pair, width, base = 10000) => base ** ((-2 * pair) / width);

/** The sinusoids of one position: sines in even columns, cosines in odd ones. */
export const sinusoids = (position, width, base = 10000) =>
  Array.from({ length: width }, (_, column) => {
    const angle = position * speed(Math.floor(column / 2), width, base);
    return column % 2 ? Math.cos(angle) : Math.sin(angle);
  });

/** Turn a pair of features by an angle, as rotary positions do. */
export const turn = ([x, y], angle) => [
  x * Math.cos(angle) - y * Math.sin(angle),
  y * Math.cos(angle) + x * Math.sin(angle),
];

/** The cosine of each vector with each. */
export function cosines(vectors) {
  const lengths = vectors.map(norm);
  const cosine = (i, j) => {
    let product = 0; // `dot` would be too slow for thousands of products
    for (let k = 0; k < vectors[i].length; k++) product += vectors[i][k] * vectors[j][k];
    return product / (lengths[i] * lengths[j]);
  };
  return vectors.map((_, i) => vectors.map((_, j) => cosine(i, j)));
}

/** The share of a square map's variation that stays if each entry becomes the mean of its distance from the diagonal. */
export function shareOfDistance(similar) {
  const mean = (numbers) => sum(numbers) / numbers.length;
  const all = similar.flatMap((row, i) => row.map((value, j) => ({ value, distance: Math.abs(i - j) })));
  const means = similar.map((_, i) => mean(all.filter(({ distance }) => distance === i).map(({ value }) => value)));
  const middle = mean(all.map(({ value }) => value));
  const left = mean(all.map(({ value, distance }) => (value - means[distance]) ** 2));
  return 1 - left / mean(all.map(({ value }) => (value - middle) ** 2));
}

/** Read a stored map: its entries right of the diagonal, row by row, each a byte from −127 to 127. */
export function unpack(text) {
  const entries = Int8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const size = (1 + Math.sqrt(1 + 8 * entries.length)) / 2;
  const similar = Array.from({ length: size }, () => Array(size).fill(1));
  let next = 0;
  for (let i = 0; i < size; i++)
    for (let j = i + 1; j < size; j++) similar[i][j] = similar[j][i] = entries[next++] / 127;
  return similar;
}

// How alike the learned positions of all-MiniLM-L6-v2 (Apache-2.0) are, from rows 0 and 480 on: tools/learned_positions.py
const LEARNED = { 0: "IycnJycnJiYmJiUkJCQlJCMiISEhIiEhICAgHyAgHx4fHx4eHR8eHh0bGhocGxsaGhobGxoaGhgZFxgXGRkYaFJKT1NKOjM8SUxBNDI5PzorHBopOUI9Mi01PkA1IhccKzMxKCQuOD0xIBQaIyEVCQ4eKikdFRYdIBcMBgxvVkxUXFQ/MzpOV049NDtGRjYiGyQ7SUY2LTNETEAoFRgpOjotJik8SEAnFxwoKhsJCBktMCMVFiIrKRgIcVZJUV1YQS4zSFdRPTA0QUk/KRccM0ZFNigtPktFLhgTIzg8MB8iOEpGLRsdLTIkDgcXLTQoGRUfLzAecFRHUF5XPiotRFZSPy0uPkpDKRQWK0BENSgqOklHMRcPHzU8LRweNUtIMRwfLjYoEAcVLTcvHBMgLzBwVEdQXVY9JypAU1M/LSw8S0MqExAiO0I4Kig2SEo1Gg8cMzksGhw1TEszICEyOisSBhQsPDIfGB8rcVVHT1xWPSYmO1FTQzAtPEhCKxEKHDZCOywnNUhLORwOGi03KxkcNUxMOCQlNTstEwYSLj03JxobcVVHTltWPSYjOVBWRzMuOUVDKw8HFjJCPS8oNEZNOh0OFSo0KRgcNExPOygoNj0uFAcVLj8+KxlxVUZOWlY9JCI1TldKNiszQT8qDQIRLkFBMikwREw7HwsSJzIoGBszTVE+Kyk2PS8WCxUuREItcVVHTVpWPiUgMkxYTTUoLzw9KQwADytCQzImLkNNPh4LECUyKBkaM01TQSwqNj4yHA4VMUVDcVZHTlpWQCYfMEtZTTUmKTc7KAwACylBQzImLkJMPB4IDiQwJxYaMk5TQS0pNz82IBAaMkZxVkZMV1VAKSAwTFlONCIkMzYmDf0JKEFDMyYrPkc5GQUMIi8lFxo0T1RBKyk0PjcjGB0zcVZGSFRVRS0jMktZTjQfIS0xJQz/CSc/RDMlKDlDNRgDCiIuJhkcNU9UQSwmMj46LR4gcVVCRVJWRi8lMUtZTzMeGyYuIw3/CCQ/QzMjIzVAMxQACiIvJxkdNU9TPygiLz5AMSJxVEFCT1VJMiUxSVhPNBsWIiojDwAGIjxBMR4gMT0vEAAKIS8nGR01TlI+JyEtQEQ1cFM9PUtUSjMnMEhZUjUbFB4pJBH/BSE8QC8cHTA7Kg79CCAuJRgcM01QPCUcLEBEcFI8PEtVSzQmLkZZUjUaEhspJA/9Ah43OyoXGy43KAr7ByErIRMXM0tOOyIeLD9wVD09TFVJMiQsRlhQNhsSHSokDvr/GTQ2JBUaLjclCfwJICgdDxYxSk47Jh8qcVM8PEtTSTAfKUNVTzQXEBwoJAn1+hUvMR8QGC41Iwf8CB8lGAwVMUtOPSUbcFI8PUxVRy4eKEFUTjIXEh4rIAXw9hIrKxYKGC00IAX7CR4gEggUMElOOiFwUjw+TlVILR0nQ1ZPMxkSISoeAu31ESgkDwgXLzQfA/oKGxwPBxMuSUw4cFM+QVBYSC0fK0VXUDUaFiQsHwHu9RElHgwFGC8zG//5BxocDwcRMElMcVRAQVBWRy4iLEVYUjYdGicuHwLu9hIjHAcGGTAwF/33CBocEAcVMUpwVD4/TlVHMCIrRlhRNx8cKC4fAO34EyIWBgUaLiwS+PYHGRsQCxYzcVQ/QE5USDEjLUZYUzkiHyoxHwHv+hUgFgYHGi0pD/j1BRcbFA0acFI8PUtTSTIlLUZZUzggHCsxHwDw/xciFgUEGCkkCvPwBBggFxJwUTs8S1RJMiQsRllSNx4fLjQf/vMBGSITAAIXKCII8PAEHCMbb086O0pUSTIiK0daUDQeIDI2HQDzBB0hEP4BFykhBO7uBx8nb1E7OUhSSTEgLEdYUTUhJjc3IP/2Bx0gDv0BGisgBu/yCSFwUTk3R1JILh8qRVhPNCMqOzodAPgJGxsH+AEaJyAE8PIJcFE5OUlTRisdKkZXTTQmMEE6HwH6ChsXAvYBGSgeBfHzb1E6PEtSQicbKUVVSjIpNkI8IAL9CxoS//UCGSgfBvFuUTs8Sk8+JBcnRFNHMSw5SEAhA/4NFxD+9gIZKB8FblI8PUxPPSEWJkRRRDAsPk1CIgUBDhcP/vUBGigeb1I9QE1POyEWJ0VQQi4wQk9BIAQADxkR//YDGilvUj5ATlA+IBgsSVJAMDNEUEAeAwIRGxMC+wYcb1E+QVBTPCAZMEtQQTEzRk89GgIBERsVBvwHblA9QVFROiAcNU5TQzE1SE87GP//ER8bCgFvUj1CT085Hx82T1RDMzdHTDgV+/wOHx0QcFE+QE5ONyAfNlBTQTM3Rks1Efn6DiAhblE8QVBOOCAhOlFTQjM3R0kxEPj8ESVuTz1DU1A4ISM7U1RBMjdERTAP+vwSblA/R1dTOyUmPlRTPzAzP0EvEPv+blFBS1lUPCQlPVJQPCwtOj8vEvtuUENMWVQ6JCc9UlA8LCs2PC4SbVJES1lTOyUmPFBQPisnMjktb1NFTFhUPiYmO1BTQCslLTNvVEVKV1Q9JiY6UVNBLCIncFVES1dTPSclOk9VRSwecFRFS1ZTPCcnOVBWRClvVUVLVlI9KSY4UFRCb1VFS1dTQConOU5UcFVGS1VTQS0qOExvVkhKVFNEMio1cFdGR1FUSDMpcFVDQ09VSDNwVUFATVNIb1Q/P0tRcFVDQUlwVUA7cFQ9cFRv", 480: "bEw9S11YOh4hPFBHLyk/WVo+JB8zPy8SBxYyOykTHG1NP0tdWjsgIj1RRzApPlhaQCMfNUAxFQUXNDcaEm1PPktfWTwgIz1QRy8oPVlbQCEjNUEyEQYYLyITbEs9TF1YOR8jPlJILyhAWlo9JCE2QS4RBRkjHWxNP0xdWDogI0BTSC8qQFhaPyQjNz8uDwgTIW1NP0peWTkeJEFTRzAqP1pcQCUkNT8rDwQWbE0+TF5XNx8nRFNJMi1CXlxBJyQ2PSYGCW1OPkxeVjggJkFUSTMrQ1xdQiUkNTgWB25MPk1cVTcgJUJSSTAtQ1xcPyUiLh8Oa0xATV9XOB8nQlNHMS1EXFo9IiEfG2xNPk1fWDkfJkFUSDIuQlpXOiIYI2xNQE5hWTkiKENUSjUvQ1lVNhMYbU1ATl9XOyQnQlVOODFDWU0eEmxMQE5eWDwhKENXTjcxRVIyGWtNQExeWjoiJ0VXTjcvPTQmbE4/TV5aPCQpRVdNNS8vM21MP0xfWT0mLEZWSS8dKWtOP0xfWj4qLUZXRiMiblA+T19bQigsRU0sG21MQ09gXUApLkI2I2tPQ1BiW0AnKy0pbE5AT2BcOyUfKm1PRE5eVjgZH21RQk9dTiEWbVBFT1MsGG1RREs5KWxPQDQ0akwvM2k/MVs6Qg==" };
const ROWS = 512; // of the learned table
const WIDTH = 384;
const END = 480;

const LENGTH = 64; // positions in a view
const MARKS = [0, 16, 32, 48, 63];
const places = Array.from({ length: LENGTH }, (_, i) => i);
const whole = (x) => x.toLocaleString("en-US");
const signed = (x) => `${x}`.replace("-", "−");
const some = (model, ...names) => names.map((name) => model.get(name));

// ---- drawings and controls ----

const LEVELS = 24; // shades of a map

/** What fills the cells of a map: a path for each shade, from `low` to 1; cells without a number stay empty. */
function fills(matrix, low) {
  const paths = Array.from({ length: LEVELS + 1 }, () => "");
  const level = (row, x) => (row?.[x] === undefined ? null : Math.round((LEVELS * (clamp(row[x], low, 1) - low)) / (1 - low)));
  matrix[0].forEach((_, x) => {
    for (let y = 0, end; y < matrix.length; y = end) {
      const own = level(matrix[y], x);
      for (end = y + 1; end < matrix.length && level(matrix[end], x) === own; end++);
      if (own !== null) paths[own] += `M${x} ${y}v${end - y}h1V${y}`;
    }
  });
  return paths;
}

/** Axes whose labels can change: `write(texts along x, texts along y)`. */
function scales(given) {
  const drawing = axes(given);
  const labels = drawing.svg.querySelectorAll("text");
  return { ...drawing, write: (...texts) => texts.flat().forEach((text, i) => (labels[i].textContent = text)) };
}

/**
 * A map of `LENGTH` rows from top to bottom: `fill(matrix, low)` it, `mark(row, text)`, and `underline` columns, as shares of
 * its breadth; a click chooses the position of its row.
 */
function shades(model, { wide, high, ...given }) {
  const drawing = scales({ width: wide + 54, height: high + 48, x: [0, 1], y: [LENGTH, 0], yLabel: "position", ...given });
  const { px, py } = drawing;
  const colours = Array.from({ length: LEVELS + 1 }, (_, level) => h("path", { fill: shade(level / LEVELS).background }));
  const cells = h("g", { "shape-rendering": "crispEdges" }, ...colours);
  const label = h("text", { x: px(1) + 9 });
  const arrows = h("path", { fill: "var(--ink)" });
  const bars = h("path", { stroke: "var(--ink)", "stroke-width": 4 });
  drawing.plot.append(cells, label, arrows, bars);
  set(drawing.svg, {
    style: "cursor: pointer",
    onclick: (event) => model.set({ position: clamp(Math.floor(drawing.at(event)[1]), 0, LENGTH - 1) }),
  });
  return {
    ...drawing,
    fill: (matrix, low) => {
      set(cells, { transform: `translate(${px(0)} ${py(0)}) scale(${wide / matrix[0].length} ${high / LENGTH})` });
      fills(matrix, low).forEach((d, i) => set(colours[i], { d }));
    },
    mark: (row, text) => {
      const y = py(row + 0.5);
      set(arrows, { d: `M${px(0) - 6} ${y - 5}l5 5l-5 5zM${px(1) + 7} ${y - 5}l-5 5l5 5z` });
      set(label, { y: y + 4 });
      label.textContent = text;
    },
    underline: (...ends) =>
      set(bars, { d: [py(0) - 4, py(LENGTH) + 4].map((y) => line(ends.map((share) => [px(share), y]))).join("") }),
  };
}

/** Let a pointer that is down on a drawing choose the position below it. */
function sweep(model, { svg, at }) {
  const go = (event) => model.set({ position: clamp(Math.round(at(event)[0]), 0, LENGTH - 1) });
  const far = (event, axis) => Math.abs(event[axis] - start[axis]);
  let start;
  set(svg, {
    style: "cursor: ew-resize; touch-action: pan-y",
    onclick: go,
    onpointerdown: (event) => (svg.setPointerCapture(event.pointerId), (start = event)),
    onpointermove: (event) => {
      if (!svg.hasPointerCapture(event.pointerId)) return;
      if (start && far(event, "clientX") > far(event, "clientY")) start = null; // until then a finger may be scrolling
      if (!start) go(event);
    },
  });
}

const controls = (...parts) => h("div", { class: "mha-controls" }, ...parts);
const row = (...parts) => h("div", { class: "mha-row" }, ...parts);
const note = (words) => h("p", { class: "mha-note" }, words);
const titled = (words, svg, room = 0) => h("div", { style: `width: ${Number(svg.getAttribute("width")) + room}px` }, note(words), svg);
const stroke = (color, width, dashes) =>
  h("path", { fill: "none", stroke: `var(--${color})`, "stroke-width": width, "stroke-dasharray": dashes });
const trace = ({ px, py }, path, points) => set(path, { d: line(points.map(([x, y]) => [px(x), py(y)])) });

const counter = (model, name, label, max, show = whole) => slider(model, { name, label, min: 0, max, step: 1, show });

/** A slider for the position that shows the place: views differ in where they begin to count. */
const positionSlider = (model, from = () => 0) =>
  counter(model, "position", "position", LENGTH - 1, (position) => whole(from() + position));

const widthAndBase = (model) => [
  slider(model, { name: "width", label: "width", min: 2, max: 32, step: 2, show: whole }),
  slider(model, { name: "base", label: "base", min: 1, max: 6, step: 1, from: Math.log10, to: (power) => 10 ** power, show: whole }),
];

/** The pair that is picked: the last one if there are fewer. */
const picked = (model) => Math.min(model.get("pair"), model.get("width") / 2 - 1);

function pairSlider(model) {
  const element = counter(model, "pair", "pair", 15, () => whole(picked(model)));
  const input = element.querySelector("input");
  model.bind(() => {
    input.max = model.get("width") / 2 - 1;
    input.value = picked(model);
  });
  return element;
}

// Each view is made once: its parts, `draw(seen)`, and `say()`. One that is not seen keeps its numbers up to date all the
// same, as they decide how much room it needs; only its maps wait.

// ---- the table, and its clocks ----

function tableView(model) {
  const table = shades(model, {
    wide: 216, high: 288, xLabel: "columns: sine, cosine, sine, …", xTicks: [], yTicks: MARKS,
    description: "The table of sinusoids, a row for each position; the chosen row is in numbers below",
  });
  const [middle, radius] = [74, 62];
  const hand = stroke("ink", 3);
  const past = h("path", { stroke: "var(--faint)", "stroke-width": 4, "stroke-linecap": "round" });
  const [sine, sineKey] = [0, 1].map(() => stroke("fourth", 2.5));
  const [cosine, cosineKey] = [0, 1].map(() => stroke("first", 2.5, "5 3"));
  const [sineText, cosineText] = [56, 86].map((y) => h("text", { x: 184, y }));
  set(sineKey, { d: "M150 52h28" });
  set(cosineKey, { d: "M150 82h28" });
  const clocks = Array.from({ length: 16 }, (_, pair) => {
    const [ring, arrow] = [h("circle", { r: 13, fill: "transparent" }), stroke("ink", 2)];
    const transform = `translate(${17 + 31 * (pair % 8)} ${182 + 31 * Math.floor(pair / 8)})`;
    return { ring, arrow, clock: h("g", { transform, style: "cursor: pointer", onclick: () => model.set({ pair }) }, ring, arrow) };
  });
  const face = h(
    "svg",
    {
      viewBox: "0 0 252 230", width: 252, height: 230, role: "img",
      "aria-label": "The hand of the chosen pair, and below it the hands of all pairs, which the table has in numbers",
    },
    h("circle", { cx: middle, cy: middle, r: radius, fill: "none", stroke: "var(--rule)" }),
    past, cosine, sine, hand, sineKey, sineText, cosineKey, cosineText,
    h("text", { x: 2, y: 162, class: "mha-positions-faint" }, "the hands of all pairs"),
    ...clocks.map(({ clock }) => clock),
  );
  const figures = grid({
    caption: "Every hand in numbers", corner: "pair", rows: ["speed", "wavelength", "sine", "cosine"],
    columns: clocks.map((_, pair) => `${pair}`),
  });

  const now = () => {
    const [width, base, position] = some(model, "width", "base", "position");
    const speeds = Array.from({ length: width / 2 }, (_, pair) => speed(pair, width, base));
    const vector = sinusoids(position, width, base);
    const [sines, cosines] = [0, 1].map((odd) => vector.filter((_, column) => column % 2 === odd));
    return { width, base, position, pair: picked(model), speeds, sines, cosines };
  };
  let shown;
  const draw = (seen) => {
    const { width, base, position, pair, speeds, sines, cosines } = now();
    if (seen) table.fill(places.map((place) => sinusoids(place, width, base)), -1);
    table.mark(position, `${position}`);
    table.underline(pair / speeds.length, (pair + 1) / speeds.length);
    const tip = (angle) => [middle + radius * Math.sin(angle), middle - radius * Math.cos(angle)];
    const end = tip(position * speeds[pair]);
    const corner = [middle, end[1]];
    set(hand, { d: line([[middle, middle], end]) });
    set(sine, { d: line([corner, end]) });
    set(cosine, { d: line([[middle, middle], corner]) });
    set(past, { d: places.slice(0, position + 1).map((place) => `${line([tip(place * speeds[pair])])}h0`).join("") });
    sineText.textContent = `sine ${number(sines[pair])}`;
    cosineText.textContent = `cosine ${number(cosines[pair])}`;
    clocks.forEach(({ ring, arrow, clock }, i) => {
      set(clock, { visibility: i < speeds.length ? null : "hidden" });
      set(ring, { stroke: i === pair ? "var(--ink)" : "var(--rule)", "stroke-width": i === pair ? 3 : 1 });
      if (i < speeds.length) set(arrow, { d: line([[0, 0], [12 * sines[i], -12 * cosines[i]]]) });
    });
    const short = (x) => (x >= 1000 ? whole(Math.round(x)) : `${Number(x.toPrecision(3))}`);
    figures.fill(
      [speeds.map(short), speeds.map((step) => short((2 * Math.PI) / step)), sines, cosines],
      (_, __, i) => ({ class: i === pair ? "mha-positions-picked" : null }),
    );
    [figures.heads, ...figures.data].forEach((cells) => cells.forEach((cell, i) => (cell.hidden = i >= speeds.length)));
    if (seen && shown !== (shown = `${pair} ${width}`)) figures.element.scrollLeft = figures.heads[pair].offsetLeft - 150;
  };
  const say = () => {
    const { position, pair, speeds, sines, cosines } = now();
    const angle = position * speeds[pair];
    return (
      `At position ${position} the hand of pair ${pair} has turned by ${number(angle)} radians, ` +
      `${number(angle / (2 * Math.PI))} times round: sine ${number(sines[pair])}, cosine ${number(cosines[pair])}.`
    );
  };
  const parts = [
    controls(positionSlider(model), pairSlider(model), ...widthAndBase(model)),
    // On a narrow screen the hand comes first, next to the sliders that move it.
    h(
      "div",
      { class: "mha-row", style: "flex-direction: row-reverse; justify-content: flex-end" },
      h("div", { style: "flex: 1 1 17rem" }, note("The hand of this pair, and where it was before"), face, figures.element),
      titled("The table, from −1 (light) to 1 (dark)", table.svg),
    ),
  ];
  return { parts, draw, say };
}

// ---- dot products of two positions ----

const STEPS = [0, 1, 2, 4, 8, 16, 32];

function distanceView(model) {
  const shares = [-1, -0.5, 0, 0.5, 1];
  const drawing = (given) => scales({ width: 300, height: 220, y: [-1, 1], yTicks: shares, yLabel: "dot product", ...given });
  const byPlace = drawing({
    x: [0, 63], xTicks: MARKS, xLabel: "the other position",
    description: "Dot products of the chosen position with others, by place; the table has them in numbers",
  });
  const byDistance = drawing({
    x: [-63, 63], xTicks: [-60, -30, 0, 30, 60], xLabel: "distance", description: "The same dot products, by distance",
  });
  const [found, all, same] = [stroke("first", 2.5), stroke("faint", 1.5, "3 3"), stroke("first", 3)];
  const [here, zero] = [stroke("ink", 1.5), stroke("ink", 1.5)];
  const label = h("text", { "text-anchor": "middle", y: byPlace.py(1) - 2 });
  byPlace.plot.append(here, found, label);
  byDistance.plot.append(zero, all, same);
  trace(byDistance, zero, [[0, -1], [0, 1]]);
  sweep(model, byPlace);
  const table = grid({ caption: "Dot products in numbers", corner: "distance", rows: ["before", "after"], columns: STEPS.map(String) });

  const now = () => {
    const [width, base, position, shift] = some(model, "width", "base", "position", "shift");
    const own = sinusoids(shift + position, width, base);
    return { width, position, shift, product: (place) => dot(own, sinusoids(shift + place, width, base)) };
  };
  const draw = () => {
    const { width, position, shift, product } = now();
    const most = width / 2;
    const aside = Array.from({ length: 127 }, (_, i) => [i - 63, product(position + i - 63) / most]);
    const inside = aside.slice(63 - position, 127 - position);
    const texts = shares.map((share) => signed(share * most));
    byPlace.write(MARKS.map((place) => whole(shift + place)), texts);
    byDistance.write(["−60", "−30", "0", "30", "60"], texts);
    trace(byPlace, found, inside.map(([distance, share]) => [position + distance, share]));
    trace(byDistance, all, aside);
    trace(byDistance, same, inside);
    trace(byPlace, here, [[position, -1], [position, 1]]);
    set(label, { x: byPlace.px(position) });
    label.textContent = whole(shift + position);
    table.fill([
      STEPS.map((step) => (shift + position < step ? "—" : product(position - step))),
      STEPS.map((step) => product(position + step)),
    ]);
  };
  const say = () => {
    const { position, shift, product } = now();
    const far = places.filter((place) => Math.abs(place - position) >= 4);
    const best = Math.max(...far.map(product));
    const nearest = far.filter((place) => product(place) > best - 1e-9).map((place) => whole(shift + place));
    return (
      `Position ${whole(shift + position)} with itself: ${number(product(position))}, half the width. With a neighbour: ` +
      `${number(product(position + 1))}. Of those 4 or more away, ${nearest.join(" and ")} ${nearest[1] ? "come" : "comes"} nearest: ${number(best)}.`
    );
  };
  const parts = [
    controls(
      positionSlider(model, () => model.get("shift")), counter(model, "shift", "count from", 5000), ...widthAndBase(model),
    ),
    row(titled("By place: drag to choose another", byPlace.svg), titled("By distance: the same part is bold", byDistance.svg)),
    table.element,
  ];
  return { parts, draw, say };
}

// ---- learned beside computed ----

const ASIDE = [-9, -6, -3, 3, 6, 9, 12];

function learnedView(model) {
  const maps = ["learned", "computed"].map((kind) =>
    shades(model, {
      wide: 192, high: 192, xLabel: "position", xTicks: MARKS.map((place) => (place + 0.5) / LENGTH), yTicks: MARKS,
      description: `How alike the ${kind} positions are, light for a cosine of 0 or less, dark for 1`,
    }),
  );
  const gap = h("text", { "text-anchor": "middle", x: maps[0].px(0.75), y: maps[0].py(30) });
  maps[0].plot.append(gap);
  const rows = scales({
    width: 250, height: 190, x: [0, 63], xTicks: MARKS, y: [-0.25, 1], yTicks: [0, 0.5, 1], xLabel: "the other position", yLabel: "cosine",
    description: "Cosines of the chosen position with the others, learned and computed; the table has them in numbers",
  });
  const [computed, learned, here] = [stroke("first", 2.5), stroke("second", 2.5, "5 2"), stroke("ink", 1.5)];
  rows.plot.append(here, computed, learned);
  sweep(model, rows);
  const table = grid({ caption: "Cosines in numbers", corner: "distance", rows: ["learned", "computed"], columns: ASIDE.map(signed) });

  const known = new Map();
  const start = () => (model.get("end") ? END : 0);
  const now = () => {
    const from = start();
    if (!known.has(from)) {
      const similar = [unpack(LEARNED[from]), cosines(places.map((place) => sinusoids(from + place, WIDTH)))];
      known.set(from, { similar, shares: similar.map((map) => `${Math.round(100 * shareOfDistance(map))}%`) });
    }
    const position = model.get("position");
    const [ofLearned, ofComputed] = known.get(from).similar.map((map) => map[position] ?? []);
    return { from, position, ofLearned, ofComputed, ...known.get(from) };
  };
  let filled = null;
  const draw = (seen) => {
    const { from, position, ofLearned, ofComputed, similar } = now();
    if (seen && filled !== from) {
      maps.forEach((map, i) => map.fill(places.map((place) => places.map((other) => similar[i][place]?.[other])), 0));
      filled = from;
    }
    const texts = MARKS.map((place) => `${from + place}`);
    maps.forEach((map) => {
      map.write(texts, texts);
      map.mark(position, `${from + position}`);
    });
    rows.write(texts);
    gap.textContent = from ? "no rows" : "";
    trace(rows, learned, ofLearned.map((value, place) => [place, value]));
    trace(rows, computed, ofComputed.map((value, place) => [place, value]));
    trace(rows, here, [[position, -0.25], [position, 1]]);
    const inside = (distance) => position + distance in places;
    table.fill([
      ASIDE.map((distance) => (inside(distance) ? ofLearned[position + distance] ?? "none" : "—")),
      ASIDE.map((distance) => ofComputed[position + distance] ?? "—"),
    ]);
  };
  const say = () => {
    const { from, position, ofLearned, ofComputed, shares } = now();
    const place = from + position;
    if (place >= ROWS)
      return (
        `The learned table has ${ROWS} rows, 0 to ${ROWS - 1}: to ask for position ${place} is an error. ` +
        "The sinusoids go on, but a model that was never trained there doesn’t know them."
      );
    const other = position + (position < 12 ? 6 : -6);
    return (
      `Positions ${place} and ${from + other} have a cosine of ${number(ofLearned[other])} learned and ${number(ofComputed[other])} computed. ` +
      `Of the learned map ${shares[0]} is distance alone, of the computed one ${shares[1]}.`
    );
  };
  const parts = [
    controls(positionSlider(model, start), toggle(model, { name: "end", label: "the end of the learned table" })),
    row(
      titled("Learned, all-MiniLM-L6-v2", maps[0].svg, 20),
      titled("Computed: sinusoids", maps[1].svg, 20),
      titled("Learned (dashed) and computed", rows.svg),
      h("div", { style: "width: 400px" }, table.element, note("Place 0 is unlike the others: it is always that of the token [CLS].")),
    ),
  ];
  return { parts, draw, say };
}

// ---- rotary: a query and a key, turned ----

const LONGEST = 1.5;

function rotaryView(model) {
  const plane = axes({
    width: 270, height: 270, x: [-1.5, 1.5], y: [-1.5, 1.5], group: true, xTicks: [-1, 0, 1], yTicks: [-1, 0, 1],
    description: "The turned query and key as arrows, whose tips can be moved",
  });
  const scores = axes({
    width: 300, height: 220, x: [-31, 31], xTicks: [-30, -15, 0, 15, 30], y: [-2.25, 2.25], yTicks: [-2, -1, 0, 1, 2],
    xLabel: "query’s place − key’s place", yLabel: "score", description: "The score by distance; the dot is the score now",
  });
  const [all, between] = [stroke("ink", 1.5), stroke("ink", 1.5)];
  const mark = h("circle", { r: 6, fill: "var(--ink)", stroke: "var(--ground)" });
  scores.plot.append(all, mark);
  const step = () => speed(picked(model), model.get("width"));
  const sides = [["query", "circle"], ["key", "square"]].map(([name, shape]) => {
    const vector = () => model.get(`${name}_vector`);
    const place = () => model.get(`${name}_place`) + model.get("shift");
    const turned = () => turn(vector(), place() * step());
    const tip = point(model, plane, {
      label: `${name}, turned`, text: name, kind: name, shape, get: turned,
      put: (to) => {
        const scale = Math.min(1, LONGEST / (norm(to) || 1));
        model.set({ [`${name}_vector`]: turn(to.map((x) => x * scale), -place() * step()) });
      },
    });
    return { vector, place, turned, tip, before: stroke(name, 1.5, "3 3"), arrow: stroke(name, 3) };
  });
  const circle = h("circle", { cx: plane.px(0), cy: plane.py(0), r: plane.px(1) - plane.px(0), fill: "none", stroke: "var(--faint)" });
  plane.plot.append(circle, between, ...sides.flatMap(({ before, arrow }) => [before, arrow]), ...sides.map(({ tip }) => tip));
  const table = grid({ caption: "Query and key in numbers", rows: ["query ●", "key ■"], columns: ["place", "at place 0", "turned by", "turned"] });

  const now = () => {
    const [query, key] = sides.map(({ turned }) => turned());
    const [queryPlace, keyPlace] = sides.map(({ place }) => place());
    return { query, key, queryPlace, keyPlace, distance: queryPlace - keyPlace, score: dot(query, key) };
  };
  const draw = () => {
    const { query, key, distance, score } = now();
    sides.forEach(({ vector, turned, before, arrow }) => {
      trace(plane, before, [[0, 0], vector()]);
      trace(plane, arrow, [[0, 0], turned()]);
    });
    const [from, to] = [key, query].map(([x, y]) => Math.atan2(y, x));
    const angle = Math.atan2(Math.sin(to - from), Math.cos(to - from));
    trace(plane, between, Array.from({ length: 25 }, (_, i) => turn([0.35, 0], from + (angle * i) / 24)));
    const [q, k] = sides.map(({ vector }) => vector());
    trace(scores, all, Array.from({ length: 249 }, (_, i) => i / 4 - 31).map((apart) => [apart, dot(turn(q, apart * step()), k)]));
    set(mark, { cx: scores.px(distance), cy: scores.py(score) });
    const pair = (vector) => `(${vector.map((x) => number(x)).join(", ")})`;
    table.fill(
      sides.map(({ vector, place, turned }) => {
        const degrees = Math.round((place() * step() * 180) / Math.PI);
        return [whole(place()), pair(vector()), `${whole(degrees)}°`, pair(turned())];
      }),
    );
  };
  const say = () => {
    const { queryPlace, keyPlace, distance, score } = now();
    const angle = Number(step().toPrecision(3));
    return (
      `The query at ${whole(queryPlace)} and the key at ${whole(keyPlace)} are ${Math.abs(distance)} apart: the score is ${number(score)}. ` +
      `In this pair a step turns by ${angle} ${angle === 1 ? "radian" : "radians"}.`
    );
  };
  const parts = [
    controls(
      counter(model, "query_place", "query at", 31), counter(model, "key_place", "key at", 31),
      counter(model, "shift", "move both", 5000), pairSlider(model),
    ),
    row(titled("Turned; dashed: as at place 0", plane.svg), titled("The score by distance; ● is now", scores.svg)),
    table.element,
  ];
  return { parts, draw, say };
}

const OPTIONS = [["table", "table and clocks"], ["distance", "dot products"], ["learned", "learned and computed"], ["rotary", "rotary"]];

export const figure = {
  name: "positions",
  label: "Positions in four views",
  build(root, model) {
    const views = { table: tableView(model), distance: distanceView(model), learned: learnedView(model), rotary: rotaryView(model) };
    const cells = OPTIONS.map(([name]) => h("div", { class: "mha-positions-view" }, ...views[name].parts));
    root.append(
      h("p", { class: "mha-title" }, "Where a token stands: computed, compared, learned, turned"),
      h("p", { class: "mha-how" }, "Choose a view and move its sliders. Click a map or a small clock; drag along a curve by place, or an arrow’s tip."),
      controls(choice(model, { name: "view", label: "view:", options: OPTIONS })),
      h("div", { class: "mha-positions-views" }, ...cells),
      h("div", { class: "mha-positions-say" }, sentence(model, () => views[model.get("view")].say())),
    );
    model.bind(() =>
      OPTIONS.forEach(([name], i) => {
        const seen = name === model.get("view");
        cells[i].style.visibility = seen ? "" : "hidden";
        views[name].draw(seen);
      }),
    );
  },
};
