// Chapter 3: what the width of queries and keys does to scores, softmax and its gradient, with and without the scale.
import { axes, button, choice, clamp, grid, h, line, number, sentence, set, shade, slider } from "./kit.mjs";
import { normal, softmax, sum } from "./maths.mjs";

const SENTENCES = 16; // each with as many queries as keys
const KEYS = 8;
const QUERIES = SENTENCES * KEYS;
const POWERS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
const WIDTHS = POWERS.map((power) => 2 ** power);

/** Draw so many vectors, entries independent with mean 0 and variance 1. */
export function draw(seed, count, width) {
  const next = normal(seed);
  return Array.from({ length: count }, () => Float64Array.from({ length: width }, next));
}

/**
 * Score each query of a sentence with each of its keys, at each width: vectors of width 4 are the first 4 entries of the widest.
 * The vectors are those of sentence 0, first its queries, then its keys, and so on.
 */
export function scoresAtWidths(vectors, keys = KEYS, widths = WIDTHS) {
  const scores = widths.map(() => []);
  for (let first = 0; first < vectors.length; first += 2 * keys) {
    for (const query of vectors.slice(first, first + keys)) {
      const rows = widths.map(() => []);
      for (const key of vectors.slice(first + keys, first + 2 * keys)) {
        let [score, entry] = [0, 0];
        widths.forEach((width, i) => {
          for (; entry < width; entry++) score += query[entry] * key[entry];
          rows[i].push(score);
        });
      }
      rows.forEach((row, i) => scores[i].push(row));
    }
  }
  return scores;
}

/** Size of the softmax's gradient: the norm of all slopes, of each weight with respect to each score. */
export const slopes = (weights) =>
  Math.sqrt(
    sum(weights.map((w, i) => w * w * sum(weights.map((other, j) => (i === j ? (1 - other) ** 2 : other * other))))),
  );

/** The number in the middle; of an even count, the mean of the two. */
export function median(numbers) {
  const sorted = Float64Array.from(numbers).sort();
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}

/** Standard deviation of all scores, and the median over the queries of the largest weight and of the gradient. */
export function measure(scores) {
  const all = scores.flat();
  const mean = sum(all) / all.length;
  const weights = scores.map((row) => softmax(row));
  return {
    deviation: Math.sqrt(sum(all.map((score) => (score - mean) ** 2)) / all.length),
    largest: median(weights.map((row) => Math.max(...row))),
    gradient: median(weights.map(slopes)),
  };
}

const small = (gradient) => (gradient < 0.0001 ? "< 0.0001" : number(gradient, 4));

const FURTHEST = 20; // the histogram's last bars hold all that lies beyond
const COLOURS = { plain: "var(--second)", scaled: "var(--first)" };
const DASHES = { plain: "5 3", scaled: null };
const MARKS = { plain: "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0Z", scaled: "M-3.5-3.5h7v7h-7Z" };

/** Share of the numbers in each bar, one wide, from -20 to 20. */
export function histogram(scores) {
  const shares = new Array(2 * FURTHEST).fill(0);
  const all = scores.flat();
  for (const score of all) shares[clamp(Math.floor(score) + FURTHEST, 0, shares.length - 1)] += 1 / all.length;
  return shares;
}

export const figure = {
  name: "square-root",
  label: "Width, scale and softmax",
  build(root, model) {
    const divide = (scores, divisor) => scores.map((row) => row.map((score) => score / divisor));
    let drawn, found; // drawing and measuring take a moment, so they are done once for each seed and divisor
    const measured = () => {
      const [seed, divisor] = [model.get("seed"), model.get("divisor")];
      if (drawn?.seed !== seed) {
        const vectors = draw(seed, 2 * SENTENCES * KEYS, WIDTHS.at(-1));
        drawn = { seed, scores: scoresAtWidths(vectors) };
      }
      if (found?.seed !== seed || found.divisor !== divisor) {
        const plain = drawn.scores;
        const scaled = plain.map((scores, i) => divide(scores, divisor === "root" ? Math.sqrt(WIDTHS[i]) : WIDTHS[i]));
        found = { seed, divisor, plain: plain.map(measure), scaled: scaled.map(measure), scores: { plain, scaled } };
      }
      const i = WIDTHS.indexOf(model.get("width"));
      return { found, i, plain: found.scores.plain[i], scaled: found.scores.scaled[i] };
    };
    const by = () => (model.get("divisor") === "root" ? "√width" : "the width");

    const bars = axes({
      width: 300, height: 250, x: [-FURTHEST, FURTHEST], y: [-0.6, 0.48], yTicks: [], xTicks: [-20, -10, 0, 10, 20],
      xLabel: "score (outermost bars: all beyond)",
      description: "Histogram of the scores: up not divided, down divided; the table has their standard deviations",
    });
    const shape = (which) => h("path", { fill: COLOURS[which], "fill-opacity": which === "plain" ? 0.55 : 1, stroke: COLOURS[which] });
    const [up, down] = [shape("plain"), shape("scaled")];
    const reach = h("path", { fill: "none", stroke: "var(--ink)", "stroke-width": 2 });
    const [upper, lower] = [0.43, -0.57].map((y) => h("text", { x: bars.px(-FURTHEST) + 2, y: bars.py(y) - 8 }));
    bars.plot.append(up, down, reach, upper, lower);

    const curve = axes({
      width: 270, height: 250, x: [0, POWERS.at(-1)], y: [0, 0.5], xTicks: [], xLabel: "width", yLabel: "gradient",
      description: "Gradient, the median of all queries, against the width; the table has it for the width that is set",
    });
    const marker = h("line", { y1: curve.py(0), y2: curve.py(0.5), stroke: "var(--ink)", "stroke-width": 1.5 });
    const series = ["plain", "scaled"].map((which) => ({
      which,
      path: h("path", { fill: "none", stroke: COLOURS[which], "stroke-width": 2, "stroke-dasharray": DASHES[which] }),
      marks: POWERS.map(() => h("path", { d: MARKS[which], fill: COLOURS[which] })),
    }));
    const widths = POWERS.filter((power) => power % 2 === 0).map((power) =>
      h("text", { x: curve.px(power), y: curve.py(0) + 14, "text-anchor": "middle" }, `${2 ** power}`),
    );
    const below = h("g", { class: "mha-axes", "aria-hidden": "true" }, ...widths);
    curve.plot.append(below, marker, ...series.flatMap(({ path, marks }) => [path, ...marks]));

    const one = grid({
      caption: "One of them and its eight keys",
      rows: Array.from({ length: KEYS }, (_, i) => `key ${i}`),
      columns: ["score", "weight", "divided", "weight"],
    });
    const all = grid({
      caption: `The middle one (median) of ${QUERIES} queries`,
      rows: ["largest weight", "gradient", "standard deviation of all scores"],
      columns: ["not divided", "divided"],
    });
    all.heads.forEach((head) => (head.style.minWidth = "4.8rem")); // as wide as "< 0.0001" needs, which comes and goes
    const legend = (...texts) =>
      h("p", { class: "mha-note" }, ...["plain", "scaled"].flatMap((which, i) => [
        h(
          "svg",
          { width: 26, height: 10, viewBox: "-13 -5 26 10", "aria-hidden": "true", class: "mha-square-root-mark" },
          h("path", { d: "M-13 0H13", stroke: COLOURS[which], "stroke-width": 2, "stroke-dasharray": DASHES[which] }),
          h("path", { d: MARKS[which], fill: COLOURS[which] }),
        ),
        `${texts[i]}${i ? "" : "\u2003"}`,
      ]));

    root.append(
      h("p", { class: "mha-title" }, "Why the square root: the same random queries and keys, at every width"),
      h("p", { class: "mha-how" }, "Make the vectors wider, and compare the scores as they are with the divided ones."),
      h(
        "div",
        { class: "mha-controls" },
        slider(model, {
          name: "width", label: "width", min: 0, max: POWERS.at(-1), step: 1,
          show: (width) => `${width}`, from: Math.log2, to: (power) => 2 ** power,
        }),
        choice(model, { name: "divisor", label: "divide by:", options: [["root", "√width"], ["width", "width"]] }),
        button(model, "Draw others", () => model.set({ seed: (model.get("seed") + 1) % 2 ** 31 })),
      ),
      h(
        "div",
        { class: "mha-row" },
        h("div", {}, legend("up: not divided", "down: divided"), bars.svg),
        h("div", {}, legend("not divided", "divided"), curve.svg),
        all.element,
        one.element,
      ),
      h("div", { class: "mha-square-root-said" }, sentence(model, () => {
        const { found: { plain, scaled }, i } = measured();
        const width = WIDTHS[i];
        return (
          `At width ${width} the scores have a standard deviation of ${number(plain[i].deviation)} ` +
          `(√${width} is ${number(Math.sqrt(width))}). The middle one of the ${QUERIES} queries gives ` +
          `${number(plain[i].largest)} of its weight to one key, and the middle gradient is ${small(plain[i].gradient)}. ` +
          `Divided by ${by()}: ${number(scaled[i].deviation)}, ${number(scaled[i].largest)} and ${small(scaled[i].gradient)}.`
        );
      })),
    );

    model.bind(() => {
      const { found, i, ...scores } = measured();
      const { plain, scaled } = found;
      const outline = (shares, way) =>
        line([
          [bars.px(-FURTHEST), bars.py(0)],
          ...shares.flatMap((share, j) => [j, j + 1].map((edge) => [bars.px(edge - FURTHEST), bars.py(way * share)])),
          [bars.px(FURTHEST), bars.py(0)],
        ]);
      set(up, { d: outline(histogram(scores.plain), 1) });
      set(down, { d: outline(histogram(scores.scaled), -1) });
      const span = (deviation, y) => {
        const far = Math.min(deviation, FURTHEST);
        const ends = deviation > FURTHEST ? "" : [-far, far].map((x) => `M${bars.px(x)} ${bars.py(y) - 4}v8`).join("");
        return line([-far, far].map((x) => [bars.px(x), bars.py(y)])) + ends;
      };
      set(reach, { d: span(plain[i].deviation, 0.43) + span(scaled[i].deviation, -0.57) });
      upper.textContent = `standard deviation ${number(plain[i].deviation)}`;
      lower.textContent = `standard deviation ${number(scaled[i].deviation)}`;

      series.forEach(({ which, path, marks }) => {
        const places = found[which].map(({ gradient }, power) => [curve.px(power), curve.py(gradient)]);
        set(path, { d: line(places) });
        marks.forEach((mark, power) => set(mark, { transform: `translate(${places[power].join(" ")})` }));
      });
      set(marker, { x1: curve.px(i), x2: curve.px(i) });

      const [before, after] = [scores.plain[0], scores.scaled[0]];
      const rows = [before, softmax(before), after, softmax(after)];
      one.fill(before.map((_, key) => rows.map((row) => row[key])), (value, _, column) => (column % 2 ? shade(value) : {}));
      all.fill(
        ["largest", "gradient", "deviation"].map((name) => [plain[i][name], scaled[i][name]]),
        (value, row) => (row === 1 ? { text: small(value) } : {}),
      );
    });
  },
};
