// Chapter 2: a query, keys and values in the plane; weights and the mixed value follow.
import { axes, choice, grid, h, line, number, point, sentence, set, shade, slider, toggle, vector } from "./kit.mjs";
import { dot, mix, norm, softmax, spread } from "./maths.mjs";

export const SIMILARITIES = {
  dot,
  scaled_dot: (query, key) => dot(query, key) / Math.sqrt(query.length),
  cosine: (query, key) => dot(query, key) / ((norm(query) || 1) * (norm(key) || 1)),
  gaussian_kernel: (query, key) => -(query.reduce((total, x, i) => total + (x - key[i]) ** 2, 0) / 2),
};

/** Look a query up: scores, weights and the mixture of the values. `hard` takes the best key alone, or the best keys evenly. */
export function lookUp({ query, keys, values, temperature, similarity, hard }) {
  const scores = keys.map((key) => SIMILARITIES[similarity](query, key));
  const isBest = scores.map((score) => score === Math.max(...scores));
  const weights = hard ? softmax(scores, isBest) : softmax(scores.map((score) => score / temperature));
  return { scores, weights, answer: mix(weights, values) };
}

const SIMILARITY_NAMES = { dot: "dot product", scaled_dot: "scaled dot product", cosine: "cosine", gaussian_kernel: "nearness (Gaussian)" };
const WORDS = ["cat", "sat", "mat"];
const LIMITS = [-2, 2];

export const figure = {
  name: "soft-addressing",
  label: "A soft look-up in the plane",
  build(root, model) {
    const found = () =>
      lookUp({
        query: model.get("query"),
        keys: model.get("key_vectors"),
        values: model.get("value_vectors"),
        temperature: model.get("temperature"),
        similarity: model.get("similarity"),
        hard: model.get("hard"),
      });
    const plane = (description) =>
      axes({ width: 270, height: 270, x: LIMITS, y: LIMITS, description, group: true, xTicks: [-2, -1, 0, 1, 2], yTicks: [-2, -1, 0, 1, 2] });

    const addresses = plane("Addresses: the query and three keys, which can be moved");
    const contents = plane("Contents: three values, which can be moved, and the answer between them");
    const rays = WORDS.map(() => h("path", { stroke: "var(--key)", fill: "none" }));
    const pulls = WORDS.map(() => h("path", { stroke: "var(--value)", fill: "none" }));
    const answer = h("path", { d: "M-9 0H9M0-9V9", stroke: "var(--ink)", "stroke-width": 3 });
    const rowOf = (name, row) => ({
      get: () => model.get(name)[row],
      put: (moved) => model.set({ [name]: model.get(name).map((old, i) => (i === row ? moved : old)) }),
    });
    addresses.plot.append(
      ...rays,
      ...WORDS.map((word, i) =>
        point(model, addresses, { label: `key of ${word}`, text: word, kind: "key", shape: "square", ...rowOf("key_vectors", i) }),
      ),
      point(model, addresses, {
        label: "query", text: "query", kind: "query", get: () => model.get("query"), put: (query) => model.set({ query }),
      }),
    );
    contents.plot.append(
      ...pulls,
      ...WORDS.map((word, i) =>
        point(model, contents, { label: `value of ${word}`, text: word, kind: "value", shape: "diamond", ...rowOf("value_vectors", i) }),
      ),
      answer,
    );

    const table = grid({ caption: "The look-up in numbers", rows: [...WORDS, "answer"], columns: ["score", "weight", "value"] });
    root.append(
      h("p", { class: "mha-title" }, "A soft look-up: similarity, softmax, weighted sum"),
      h("p", { class: "mha-how" }, "Drag a point, or move to it with Tab and use the arrow keys."),
      h(
        "div",
        { class: "mha-controls" },
        slider(model, {
          name: "temperature", label: "temperature", min: -1.3, max: 1.3, step: 0.05,
          from: Math.log10, to: (power) => Number((10 ** power).toPrecision(3)), off: () => model.get("hard"),
        }),
        toggle(model, { name: "hard", label: "hard look-up: the best key alone" }),
        choice(model, {
          name: "similarity", label: "similarity:",
          options: Object.entries(SIMILARITY_NAMES),
        }),
      ),
      h(
        "div",
        { class: "mha-row" },
        h("div", {}, h("p", { class: "mha-note" }, "Addresses: query ● and keys ■"), addresses.svg),
        h("div", {}, h("p", { class: "mha-note" }, "Contents: values ◆ and the answer +"), contents.svg),
        table.element,
      ),
      sentence(model, () => {
        const { weights, answer } = found();
        const most = Math.max(...weights);
        const best = WORDS.filter((_, i) => most - weights[i] < 1e-9);
        const how = model.get("hard") ? "A hard look-up" : `At temperature ${number(model.get("temperature"))}`;
        const who = best.length > 1 ? `${best.join(" and ")} answer alike` : `${best[0]} answers most`;
        return (
          `${how} by ${SIMILARITY_NAMES[model.get("similarity")]}: ${who}, with a weight of ${number(most)}. ` +
          `The answer is ${vector(answer)}` +
          (model.get("hard") ? "." : `, as if ${number(spread(weights), 1)} of 3 entries answered equally.`)
        );
      }),
    );

    model.bind(() => {
      const { scores, weights, answer: mixed } = found();
      const [query, keys, values] = ["query", "key_vectors", "value_vectors"].map((name) => model.get(name));
      const between = (drawing, from, to) => line([from, to].map(([x, y]) => [drawing.px(x), drawing.py(y)]));
      weights.forEach((weight, i) => {
        set(rays[i], { d: between(addresses, query, keys[i]), "stroke-width": 0.5 + 6 * weight });
        set(pulls[i], { d: between(contents, values[i], mixed), "stroke-width": 0.5 + 6 * weight });
      });
      set(answer, { transform: `translate(${contents.px(mixed[0]).toFixed(1)} ${contents.py(mixed[1]).toFixed(1)})` });
      table.fill(
        [...WORDS.map((_, i) => [scores[i], weights[i], vector(values[i])]), ["", weights.reduce((a, b) => a + b), vector(mixed)]],
        (value, row, column) => (column === 1 && row < WORDS.length ? shade(value) : {}),
      );
    });
  },
};
