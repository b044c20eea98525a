// Chapter 7: one encoder layer, box by box, in both orders of its norms; and what becomes of size and gradient in a stack.
import { axes, balance, button, choice, grid, h, line, number, sentence, set, slider, toggle, vector } from "./kit.mjs";
import { dot, norm, softmax, sum, transpose, uniform } from "./maths.mjs";
import { FEATURES, WORDS } from "./running_example.mjs";

// ---- parts: each gives its `output`, and `back`, which leads a gradient from its end to its beginning ----------------

// Plain loops, as a stack takes a hundred thousand of these steps.
function product(a, b) {
  return a.map((row) => {
    const mixed = new Array(b[0].length).fill(0);
    for (let k = 0; k < b.length; k++) for (let j = 0; j < mixed.length; j++) mixed[j] += row[k] * b[k][j];
    return mixed;
  });
}
function productWithRows(a, b) {
  return a.map((row) =>
    b.map((other) => {
      let total = 0;
      for (let k = 0; k < row.length; k++) total += row[k] * other[k];
      return total;
    }),
  );
}
const plus = (a, ...others) => a.map((row, i) => row.map((x, j) => others.reduce((total, other) => total + other[i][j], x)));
const average = (numbers) => sum(numbers) / numbers.length;
const unchanged = (x) => ({ output: x, back: (gradient) => gradient });

const centred = (row) => {
  const mean = average(row);
  return row.map((x) => x - mean);
};

/** Mean and standard deviation of a vector; the squares are divided by the number of features. */
export const meanAndDeviation = (row) => [average(row), Math.sqrt(average(centred(row).map((x) => x * x)))];

const EPSILON = 1e-5;

/** Bring each vector to mean 0 and variance 1. */
export function layerNorm(x) {
  const scales = x.map((row) => Math.sqrt(meanAndDeviation(row)[1] ** 2 + EPSILON));
  const output = x.map((row, i) => centred(row).map((feature) => feature / scales[i]));
  const back = (gradient) =>
    gradient.map((row, i) => {
      const along = dot(row, output[i]) / row.length;
      return centred(row).map((g, j) => (g - output[i][j] * along) / scales[i]);
    });
  return { output, back };
}

/** Two dense layers with a ReLU between them, for each word on its own. */
export function feedForward(x, { w1, w2 }) {
  const hidden = product(x, w1).map((row) => row.map((unit) => Math.max(0, unit)));
  const back = (gradient) => {
    const passed = productWithRows(gradient, w2).map((row, i) => row.map((g, j) => (hidden[i][j] > 0 ? g : 0)));
    return productWithRows(passed, w1);
  };
  return { output: product(hidden, w2), hidden, back };
}

/** Multi-head attention of the words to one another. */
export function attention(x, { heads, query, key, value, output }) {
  const width = query.length / heads;
  const part = (matrix, head) => matrix.map((row) => row.slice(head * width, (head + 1) * width));
  const scaled = (matrix) => matrix.map((row) => row.map((number) => number / Math.sqrt(width)));
  const beside = (parts) => parts[0].map((_, i) => parts.flatMap((matrix) => matrix[i]));
  const all = Array.from({ length: heads }, (_, head) => {
    const [q, k, v] = [query, key, value].map((weights) => part(product(x, weights), head));
    return { q, k, v, weights: scaled(productWithRows(q, k)).map((row) => softmax(row)) };
  });
  const back = (gradient) => {
    const mixed = productWithRows(gradient, output);
    const ways = all.map(({ q, k, v, weights }, head) => {
      const own = part(mixed, head);
      const ofWeights = productWithRows(own, v);
      const ofScores = scaled(weights.map((row, i) => row.map((w, j) => w * (ofWeights[i][j] - dot(ofWeights[i], row)))));
      return [product(ofScores, k), product(transpose(ofScores), q), product(transpose(weights), own)];
    });
    const [q, k, v] = [query, key, value].map((weights, i) => productWithRows(beside(ways.map((way) => way[i])), weights));
    return plus(q, k, v);
  };
  const mixed = beside(all.map(({ weights, v }) => product(weights, v)));
  return { output: product(mixed, output), weights: all.map(({ weights }) => weights), back };
}

// ---- layer and stack ------------------------------------------------------------------------------------------------

function sublayer(x, part, { order, residual, norms }) {
  const pre = order === "pre_norm";
  const normalise = norms ? layerNorm : unchanged;
  const before = pre ? normalise(x) : unchanged(x);
  const found = part(before.output);
  const summed = residual ? plus(x, found.output) : found.output;
  const after = pre ? unchanged(summed) : normalise(summed);
  const back = (gradient) => {
    const atSum = after.back(gradient);
    const through = before.back(found.back(atSum));
    return residual ? plus(atSum, through) : through;
  };
  return { found, summed, normed: (pre ? before : after).output, output: after.output, back };
}

/** One encoder layer: the words' vectors at each of its places. `order` is "post_norm" or "pre_norm". */
export function encoderLayer(x, weights, settings) {
  const first = sublayer(x, (tokens) => attention(tokens, weights), settings);
  const second = sublayer(first.output, (tokens) => feedForward(tokens, weights), settings);
  return {
    places: {
      input: x, attention: first.found.output, add_1: first.summed, norm_1: first.normed,
      feed_forward: second.found.output, add_2: second.summed, norm_2: second.normed,
    },
    weights: first.found.weights,
    hidden: second.found.hidden,
    output: second.output,
    back: (gradient) => first.back(second.back(gradient)),
  };
}

/** Root of the mean square of all features of all words. */
export const size = (x) => Math.sqrt(average(x.map((row) => dot(row, row) / row.length)));

/** How alike the words are: the mean cosine of two of them; NaN, if one has no direction as it is all 0. */
export function likeness(x) {
  const units = x.map((row) => row.map((feature) => feature / norm(row)));
  return average(units.flatMap((unit, i) => units.slice(i + 1).map((other) => dot(unit, other))));
}

/**
 * A stack of layers, pre-norm with one norm more at its end, and after how many layers what is measured: the words' size,
 * their likeness, and the length of the gradient there, as a share of the `signal` that is sent back from the end.
 */
export function encoderStack(x, layers, settings, signal) {
  const passed = [{ output: x }];
  for (const weights of layers) passed.push(encoderLayer(passed.at(-1).output, weights, settings));
  const last = settings.norms && settings.order === "pre_norm" ? layerNorm : unchanged;
  const end = last(passed.at(-1).output);
  const gradients = [end.back(signal)];
  for (const layer of passed.slice(1).reverse()) gradients.unshift(layer.back(gradients[0]));
  return {
    size: passed.map(({ output }) => size(output)),
    alike: passed.map(({ output }) => likeness(output)),
    gradient: gradients.map((gradient) => size(gradient) / size(signal)),
    output: end.output,
  };
}

// ---- weights --------------------------------------------------------------------------------------------------------

const matrix = (rows, columns, draw) => Array.from({ length: rows }, () => Array.from({ length: columns }, draw));
/** Xavier's way: uniform, and so wide that signals keep their size. */
const xavier = (rows, columns, draw) => matrix(rows, columns, () => (2 * draw() - 1) * Math.sqrt(6 / (rows + columns)));

const WIDE = 16;

/** Weights of 24 layers 16 features wide, of the matrix that makes such tokens of the words, and a signal to send back. */
export function drawStack(seed) {
  const draw = uniform(seed);
  const square = () => xavier(WIDE, WIDE, draw);
  const widen = matrix(4, WIDE, () => 2 * draw() - 1);
  const signal = matrix(6, WIDE, () => 2 * draw() - 1);
  const layers = Array.from({ length: 24 }, () => ({
    heads: 4, query: square(), key: square(), value: square(), output: square(),
    w1: xavier(WIDE, 4 * WIDE, draw), w2: xavier(4 * WIDE, WIDE, draw),
  }));
  return { widen, signal, layers };
}

/**
 * Weights of the layer shown in numbers. Attention asks the questions of chapter 4 and adds up what its heads find: an action
 * asks "who?" in head 0 and "where?" in head 1. Feed-forward has random weights with one decimal.
 */
export function smallLayer() {
  const draw = uniform(159);
  const decimal = () => Math.round(20 * draw() - 10) / 10;
  const find = [[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]];
  return {
    heads: 2,
    query: [[0, 0, 0, 0], [0, 0, 0, 0], [2, 0, 0, 2], [0, 0, 0, 0]],
    key: find,
    value: find,
    output: [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]],
    w1: matrix(4, 8, decimal),
    w2: matrix(8, 4, decimal),
  };
}

// ---- drawing --------------------------------------------------------------------------------------------------------

const SAT = 2;
const NAMES = {
  input: "x", attention: "attention", add_1: "+", norm_1: "norm 1", feed_forward: "feed-forward", add_2: "+", norm_2: "norm 2",
};
const TITLES = {
  input: "The input x", attention: "What attention finds", add_1: "After the first sum", norm_1: "After norm 1",
  feed_forward: "What feed-forward finds", add_2: "After the second sum", norm_2: "After norm 2",
};
const ORDERS = [["post_norm", "post-norm"], ["pre_norm", "pre-norm"]];
// Where each place stands, on the residual path or on a branch, and how far down; in the order of the flow.
const [STREAM, BRANCH, WIDTH, HEIGHT] = [82, 192, 290, 356];
const FLOW = {
  post_norm: {
    input: [STREAM, 16], attention: [BRANCH, 72], add_1: [STREAM, 116], norm_1: [STREAM, 160],
    feed_forward: [BRANCH, 218], add_2: [STREAM, 262], norm_2: [STREAM, 306],
  },
  pre_norm: {
    input: [STREAM, 16], norm_1: [BRANCH, 66], attention: [BRANCH, 110], add_1: [STREAM, 152],
    norm_2: [BRANCH, 206], feed_forward: [BRANCH, 250], add_2: [STREAM, 292],
  },
};
const WIDTHS = { input: 40, add_1: 32, add_2: 32, norm_1: 72, norm_2: 72, attention: 108, feed_forward: 108 };

/** What happens to the word "sat" at a place, in words and numbers. */
export function account(place, { places, weights, hidden }, { order, residual, norms }) {
  const [at, pre] = [(name) => vector(places[name][SAT]), order === "pre_norm"];
  const before = { norm_1: pre ? "input" : "add_1", norm_2: pre ? "add_1" : "add_2" }[place];
  const stays = { add_1: "input", add_2: pre ? "add_1" : "norm_1" }[place];
  const finder = { add_1: "attention", add_2: "feed_forward" }[place];
  if (place === "input") {
    const [mean, deviation] = meanAndDeviation(places.input[SAT]);
    return `“sat” comes in as ${at("input")}, with mean ${number(mean)} and standard deviation ${number(deviation)}.`;
  }
  if (place === "attention") {
    const told = weights.map((head) => {
      const [least, most] = [Math.min(...head[SAT]), Math.max(...head[SAT])];
      return most - least < 0.005 ? "all words alike" : `“${WORDS[head[SAT].indexOf(most)]}” most (${number(most)})`;
    });
    return `In head 0 “sat” attends to ${told[0]}, in head 1 to ${told[1]}. Together they find ${at("attention")} for it.`;
  }
  if (place === "feed_forward") {
    const open = hidden[SAT].filter((unit) => unit > 0).length;
    return `“sat” goes through by itself: ReLU lets ${open} of its 8 units pass, and they are combined into ${at("feed_forward")}.`;
  }
  if (finder) {
    return residual
      ? `${at(stays)}, what “sat” was, plus ${at(finder)}, what it finds, is ${at(place)}.`
      : `The residual path is cut: of what “sat” was nothing is added, and only what it finds goes on, ${at(place)}.`;
  }
  if (!norms) return `This norm is taken out: “sat” goes through as it is, ${at(before)}.`;
  const [mean, deviation] = meanAndDeviation(places[before][SAT]);
  // Where epsilon can be seen in what comes out, it is named.
  const divisor =
    deviation < 0.03
      ? `√(variance + ε) = ${number(Math.sqrt(deviation ** 2 + EPSILON), 4)}`
      : `its standard deviation ${number(deviation)}`;
  return `${at(before)}, minus its mean ${number(mean)}, divided by ${divisor}, is ${at(place)}.`;
}

/** The layer as a drawing; on each of its boxes lies a button, and beside it stands the size of the words there. */
function layerDrawing(model, found) {
  const picture = h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true" });
  const buttons = Object.fromEntries(
    Object.entries(TITLES).map(([place, title]) => [place, h("button", { type: "button", "aria-label": title, onclick: () => model.set({ place }) })]),
  );
  const box = h("div", { class: "mha-encoder-layer", role: "group", "aria-label": "Places of the layer" }, picture);
  let laid = null;

  function lay(order) {
    const held = document.activeElement;
    for (const [place, [x, y]] of Object.entries(FLOW[order])) {
      const button = buttons[place];
      Object.assign(button.style, { left: `${x - WIDTHS[place] / 2}px`, top: `${y - 16}px`, width: `${WIDTHS[place]}px` });
      box.append(button); // Tab follows the flow
    }
    if (box.contains(held)) held.focus();
    laid = order;
  }

  model.bind(() => {
    const [order, residual, norms, chosen] = ["order", "residual", "norms", "place"].map((name) => model.get(name));
    if (laid !== order) lay(order);
    const flow = FLOW[order];
    const way = (d, attributes) => h("path", { d, fill: "none", stroke: "var(--ink)", "stroke-width": 4, ...attributes });
    const tip = { fill: "var(--ink)", "stroke-width": 0 };
    const cut = { "stroke-dasharray": "1 7", stroke: "var(--faint)", "stroke-width": 2 };
    let start = flow.input[1];
    const rails = ["1", "2"].flatMap((which) => {
      const sumAt = flow[`add_${which}`][1];
      const turn = start + 27;
      const pieces = [
        way(`M${STREAM} ${start}V${turn}`),
        way(`M${STREAM} ${turn}V${sumAt}`, residual ? {} : cut),
        way(`M${STREAM} ${turn}H${BRANCH}V${sumAt}H${STREAM + 24}`, { "stroke-width": 1.5 }),
        way(`M${STREAM + 17} ${sumAt}l9-5v10Z`, tip),
      ];
      start = order === "post_norm" ? flow[`norm_${which}`][1] : sumAt;
      return [...pieces, way(`M${STREAM} ${sumAt}V${start}`)];
    });
    const boxes = Object.entries(flow).flatMap(([place, [x, y]]) => {
      const [half, here] = [WIDTHS[place] / 2, place === chosen];
      const off = place.startsWith("norm") ? !norms : place.startsWith("add") && !residual;
      set(buttons[place], { "aria-pressed": `${here}` });
      const outline = { fill: here ? "var(--ink)" : "var(--ground)", stroke: "var(--faint)", "stroke-dasharray": off ? "4 3" : null };
      const [side, anchor] = x === BRANCH ? [half + 6, "start"] : [-half - 6, "end"];
      return [
        h("rect", { x: x - half, y: y - 16, width: 2 * half, height: 32, rx: 4, ...outline }),
        h("text", { x, y: y + 5, "text-anchor": "middle", style: `font-size:14px;fill:var(--${here ? "ground" : off ? "faint" : "ink"})` }, NAMES[place]),
        h("text", { x: x + side, y: y + 4, "text-anchor": anchor }, short(size(found().places[place]))),
      ];
    });
    picture.replaceChildren(...rails, way(`M${STREAM} ${start}V${HEIGHT - 12}`), way(`M${STREAM} ${HEIGHT - 2}l-6-10h12Z`, tip), ...boxes);
  });
  return box;
}

/** A number in a few letters, however large or small. */
const short = (value) => {
  const plain = value === 0 || (value >= 0.005 && value < 99.5);
  return plain ? number(value) : value.toExponential(0).replace("e+", "e").replace("-", "−");
};
const power = (exponent) => (Math.abs(exponent) < 4 ? `${10 ** exponent}` : short(10 ** exponent));

/** A chart of one line for each order over the layers passed; its vertical axis fits what it shows. */
function depthChart({ lines, order, logarithmic, description }) {
  const scale = (value) => (logarithmic ? Math.log10(Math.max(value, 1e-99)) : value);
  const [lowest, highest] = [Math.min, Math.max].map((pick) => pick(...lines.flat().map(scale)));
  const y = logarithmic ? [Math.min(-1, Math.floor(lowest)), Math.max(1, Math.ceil(highest))] : [0, Math.max(6, Math.ceil(highest))];
  const step = Math.ceil((y[1] - y[0]) / 6);
  const marks = Array.from({ length: Math.floor((y[1] - y[0]) / step) + 1 }, (_, i) => y[0] + i * step);
  const { svg, plot, px, py } = axes({
    width: WIDTH, height: 190, x: [0, 24], y, xTicks: [0, 6, 12, 18, 24], yTicks: [], xLabel: "layers passed", description,
  });
  const mark = (place) => [
    h("line", { x1: px(0), x2: px(24), y1: py(place), y2: py(place) }),
    h("text", { x: px(0) - 4, y: py(place) + 4, "text-anchor": "end" }, logarithmic ? power(place) : `${place}`),
  ];
  plot.append(
    h("g", { class: "mha-axes", "aria-hidden": "true" }, ...marks.flatMap(mark)),
    ...ORDERS.flatMap(([name], which) => {
      const color = ["var(--first)", "var(--second)"][which];
      const spots = lines[which].map((value, i) => [px(i), py(scale(value))]);
      const shape = which ? "m-2.5-2.5h5v5h-5Z" : "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z";
      return [
        h("path", { d: line(spots), fill: "none", stroke: color, "stroke-width": name === order ? 3 : 1, "stroke-dasharray": which ? "5 3" : null }),
        h("path", { d: spots.map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}${shape}`).join(""), fill: color }),
      ];
    }),
  );
  return svg;
}

const PASSED = [0, 1, 2, 4, 8, 12, 18, 24];
const MEASURES = ["size", "gradient", "alike"];

export const figure = {
  name: "encoder",
  label: "An encoder layer box by box, and a stack of layers",
  build(root, model) {
    const settings = () => Object.fromEntries(["order", "residual", "norms"].map((name) => [name, model.get(name)]));
    // What was calculated last is kept: choosing a box changes none of it.
    const remembered = (calculate, ...parts) => {
      let [known, result] = [];
      return () => {
        const now = JSON.stringify(parts.map((part) => model.get(part)));
        if (now !== known) [known, result] = [now, calculate()];
        return result;
      };
    };
    const small = smallLayer();
    const layer = remembered(() => encoderLayer(model.get("x"), small, settings()), "x", "order", "residual", "norms");
    const drawn = remembered(() => drawStack(model.get("seed")), "seed");
    const stacks = remembered(
      () => {
        const { widen, signal, layers } = drawn();
        const [tokens, used] = [product(model.get("x"), widen), layers.slice(0, model.get("num_layers"))];
        return ORDERS.map(([order]) => encoderStack(tokens, used, { ...settings(), order }, signal));
      },
      "x", "residual", "norms", "num_layers", "seed",
    );

    const after = grid({ caption: "", rows: WORDS, columns: [...FEATURES, "mean", "standard deviation"] });
    const caption = after.element.querySelector("caption");
    const first = { x: model.get("x"), seed: model.get("seed") };
    // Out of its limits a number is not taken over: the field is marked, and left, it shows the true one again.
    const change = (row, column, value) =>
      Math.abs(value) <= 10 && model.set({ x: model.get("x").map((old, i) => old.map((was, j) => (i === row && j === column ? value : was))) });
    const input = grid({ caption: "Input x (to change; −10 to 10)", rows: WORDS, columns: FEATURES, edit: change });
    for (const field of input.element.querySelectorAll("input")) set(field, { min: -10, max: 10, onblur: () => input.fill(model.get("x")) });
    const twin = grid({
      caption: "The stack", corner: "layers passed", columns: PASSED,
      rows: MEASURES.flatMap((measure) => ORDERS.map(([, order]) => `${measure}, ${order}`)),
    });
    const twinCaption = twin.element.querySelector("caption");
    // They stand at the drawing and again at the charts, which are a screen further down.
    const switches = () => [["residual", "residual paths"], ["norms", "norms"]].map(([name, label]) => toggle(model, { name, label }));
    // In print the switches are gone.
    const off = () => {
      const gone = [["residual", "residual paths"], ["norms", "norms"]].filter(([name]) => !model.get(name)).map(([, words]) => words);
      return gone.length ? `, without ${gone.join(" and ")}` : "";
    };
    const said = (text) => h("div", { class: "mha-encoder-said" }, sentence(model, text));
    const charts = [h("div", {}), h("div", {})];
    const captions = { query: "q_proj", key: "k_proj", value: "v_proj", output: "out_proj", w1: "W₁", w2: "W₂" };
    const weights = Object.entries(captions).map(([name, caption]) => {
      const shown = grid({ caption, rows: small[name].map((_, i) => i), columns: small[name][0].map((_, i) => i) });
      shown.fill(small[name], (value) => ({ text: number(value, name.startsWith("w") ? 1 : 0) }));
      return shown.element;
    });

    root.append(
      h("p", { class: "mha-title" }, "One encoder layer, box by box"),
      h("p", { class: "mha-how" }, "Press a box to see the words' vectors there; switch the order, and take the residual paths or the norms away."),
      h("p", { class: "mha-note" }, "The number beside a box is the size of the vectors there: the root of the mean square of their features."),
      h(
        "div",
        { class: "mha-controls" },
        choice(model, { name: "order", label: "order:", options: ORDERS }),
        ...switches(),
      ),
      h(
        "div",
        { class: "mha-row" },
        layerDrawing(model, layer),
        h("div", { class: "mha-encoder-numbers" }, after.element, said(() => account(model.get("place"), layer(), settings())), input.element, h("div", { class: "mha-controls" }, button(model, "Set x back", () => model.set({ x: first.x }), () => model.get("x") === first.x))),
      ),
      h("details", {}, h("summary", {}, "The weights of this layer"), h("div", { class: "mha-row" }, ...weights)),
      h("p", { class: "mha-title mha-encoder-stack" }, "The same choices in a stack of layers"),
      h(
        "p",
        { class: "mha-note" },
        `The input x times a random 4 × ${WIDE} matrix makes tokens ${WIDE} features wide; all weights are random. Post-norm ● solid, pre-norm ■ dashed, with one norm more at the end; the order chosen above is thicker.`,
      ),
      h(
        "div",
        { class: "mha-controls" },
        slider(model, { name: "num_layers", label: "layers", min: 1, max: 24, step: 1, show: (n) => `${n}` }),
        ...switches(),
        button(model, "Other weights", () => model.set({ seed: model.get("seed") + 1 })),
        button(model, "First weights", () => model.set({ seed: first.seed }), () => model.get("seed") === first.seed),
      ),
      h(
        "div",
        { class: "mha-row" },
        h("div", {}, h("p", { class: "mha-note" }, "Size of the tokens"), charts[0]),
        h("div", {}, h("p", { class: "mha-note" }, "Gradient: share of a signal sent back from the end"), charts[1]),
      ),
      said(() => {
        const [post, pre] = stacks();
        const n = model.get("num_layers");
        if (model.get("norms") && post.size[n] === 0)
          return (
            "All tokens are 0 and stay 0. So each norm divides by √ε = 0.0032, backwards as well, and a gradient grows more than " +
            `three-hundredfold in it: the share that reaches the first layer’s input is ${short(post.gradient[0])} in post-norm and ${short(pre.gradient[0])} in pre-norm.`
          );
        const both = (measure, i) => `${short(post[measure][i])} in post-norm and ${short(pre[measure][i])} in pre-norm`;
        return (
          `After ${n} ${n === 1 ? "layer" : "layers"} the tokens' size is ${both("size", n)}. Of a signal sent back from the end, ` +
          `the share that reaches the last layer's input is ${both("gradient", n - 1)}; the first layer's, ${both("gradient", 0)}.`
        );
      }),
      h("div", { class: "mha-encoder-twin" }, twin.element),
    );

    model.bind(() => {
      const { places } = layer();
      const place = model.get("place");
      caption.textContent = `${TITLES[place]} (${model.get("order").replace("_", "-")}${off()})`;
      twinCaption.textContent = `The stack${off()} (alike: mean cosine of two tokens)`;
      after.fill(places[place].map((row) => [...row, ...meanAndDeviation(row)]), (value, _, column) =>
        column < FEATURES.length ? balance(value, 2) : {},
      );
      input.fill(model.get("x"));
      const n = model.get("num_layers");
      twin.fill(
        MEASURES.flatMap((measure) => {
          const write = measure === "alike" ? number : short;
          return stacks().map((stack) => PASSED.map((i) => (stack[measure][i] >= -1 ? write(stack[measure][i]) : "–")));
        }),
      );
      const order = model.get("order");
      const draw = (which, measure, logarithmic, description) =>
        charts[which].replaceChildren(depthChart({ lines: stacks().map((stack) => stack[measure]), order, logarithmic, description }));
      draw(0, "size", !model.get("norms"), "Size of the tokens after each layer; the table below has the numbers");
      draw(1, "gradient", true, "Gradient after each layer, as a share of the signal at the end; the table below has the numbers");
    });
  },
};
