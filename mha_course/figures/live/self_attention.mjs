// Chapter 3: self-attention of one sentence, step by step, with every number.
import { balance, button, choice, clamp, grid, h, number, sentence, set, shade, steps, toggle, vector } from "./kit.mjs";
import { matmul, mix, softmax, sum, transpose } from "./maths.mjs";
import { FEATURES, WORDS } from "./running_example.mjs";

/** Who may attend to whom: true where the key is a real word and, under a causal mask, not later than the query. */
export const mayAttend = (real, causal) => real.map((_, i) => real.map((isReal, j) => isReal && (!causal || j <= i)));

/** Everything that self-attention calculates for one sentence. */
export function attend({ tokens, query_matrix, key_matrix, value_matrix, real, causal }) {
  const [query, key, value] = [query_matrix, key_matrix, value_matrix].map((matrix) => matmul(tokens, matrix));
  const products = matmul(query, transpose(key));
  const scores = products.map((row) => row.map((product) => product / Math.sqrt(key[0].length)));
  const mask = mayAttend(real, causal);
  const weights = scores.map((row, i) => softmax(row, mask[i]));
  return { query, key, value, products, scores, mask, weights, output: weights.map((row) => mix(row, value)) };
}

const short = (value) => number(value, 3).replace(/\.?0+$/, "");
const factor = (value) => (short(value).startsWith("−") ? `(${short(value)})` : short(value));
const products = (a, b) => a.map((x, i) => `${factor(x)} · ${factor(b[i])}`).join(" + ");

/** Write out where the weight in one place of a row of scores comes from. */
export function weightInWords(scores, seen, column) {
  const largest = Math.max(...scores.filter((_, j) => seen[j]));
  const shift = Math.abs(largest) > 12 ? largest : 0; // e to more than that is a number nobody wants to read
  const powers = scores.map((score) => score - shift);
  const total = sum(powers.map((power, j) => (seen[j] ? Math.exp(power) : 0)));
  const terms = powers.filter((_, j) => seen[j]).map((power) => `e^${factor(power)}`);
  return (
    (shift ? `the largest score, ${short(shift)}, is subtracted from all, then ` : "") +
    `e^${factor(powers[column])} / (${terms.join(" + ")}) = ` +
    `${short(Math.exp(powers[column]))} / ${short(total)} = ${short(Math.exp(powers[column]) / total)}`
  );
}

const PAIR = ["0", "1"];
const MOST = 99; // of a number that is typed in: what follows from it still fits into the tables
const MATRICES = { query: "Query matrix", key: "Key matrix", value: "Value matrix" };
const PLURAL = { query: "Queries Q", key: "Keys K", value: "Values V" };
const NUMBERS = ["1", "2", "3", "4", "4b", "5", "6"]; // those of the chapter, where the mask comes later
const TITLES = [
  "Inputs: six words, three matrices",
  "Project: each word times a matrix",
  "Score: every query with every key",
  "Scale: divide by √2, as vectors are 2 wide",
  "Mask: strike out what may not be seen",
  "Softmax: each row of scores becomes weights",
  "Weighted sum: each word mixes the values",
];
const STATE = ["tokens", "query_matrix", "key_matrix", "value_matrix", "real", "causal"];

/** Say where the chosen number comes from. */
export function origin(state, found, { step, projection, row, column, entry }) {
  const [asking, asked] = [`“${WORDS[row]}”`, `“${WORDS[column]}”`];
  const { query, key, value, mask, weights } = found;
  const word = state.tokens[row];
  const part = (matrix) => transpose(matrix)[entry];
  const hidden = state.real[column] ? "it comes later, and the mask is causal" : "it is padding";
  const alone =
    !mask[row].includes(true) && `${asking} may attend to nothing: all its weights are 0, and it receives zeros.`;
  return [
    () => `Change any number, to one between −${MOST} and ${MOST}: all that follows is calculated from it.`,
    () =>
      `${asking}, ${projection}, entry ${entry}: ` +
      `${products(word, part(state[`${projection}_matrix`]))} = ${short(found[projection][row][entry])}.`,
    () =>
      `${asking} asks ${asked}, query ${vector(query[row], short)} times key ${vector(key[column], short)}: ` +
      `${products(query[row], key[column])} = ${short(found.products[row][column])}.`,
    () => `${asking} asks ${asked}: ${short(found.products[row][column])} / √${key[0].length} = ${short(found.scores[row][column])}.`,
    () =>
      alone ||
      (mask[row][column]
        ? `${asking} may attend to ${asked}: the score stays.`
        : `${asking} may not attend to ${asked}: ${hidden}.`),
    () =>
      alone ||
      (mask[row][column]
        ? `${asking} gives ${asked}: ${weightInWords(found.scores[row], mask[row], column)}.`
        : `${asking} may not attend to ${asked}: a weight of 0. The others of the row share the 1.`),
    () =>
      alone ||
      `${asking} receives, entry ${entry}: ${products(weights[row], part(value))} = ${short(found.output[row][entry])}.`,
  ][step]();
}

/** Let one cell of a table be chosen, by pointer or arrow keys, Home and End. `across` names the state that counts its columns. */
function pickable(model, { element, data }, across) {
  element.querySelector("table").setAttribute("role", "grid");
  const chosen = () => [model.get("row"), model.get(across)];
  const choose = (row, column) => {
    model.set({ row, [across]: column });
    data[row][column].focus();
  };
  const move = (event) => {
    const far = data[0].length;
    const ways = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -far], End: [0, far] };
    const way = ways[event.key];
    if (!way || event.altKey || event.ctrlKey || event.metaKey) return; // those belong to the browser
    event.preventDefault();
    const [row, column] = chosen();
    choose(clamp(row + way[0], 0, data.length - 1), clamp(column + way[1], 0, data[0].length - 1));
  };
  data.forEach((line, i) => line.forEach((cell, j) => set(cell, { onclick: () => choose(i, j), onkeydown: move })));
  model.bind(() => {
    const [row, column] = chosen();
    data.forEach((line, i) =>
      line.forEach((cell, j) => {
        const here = i === row && j === column;
        set(cell, { tabindex: here ? 0 : -1, "aria-selected": `${here}` });
      }),
    );
  });
}

export const figure = {
  name: "self-attention",
  label: "Self-attention step by step",
  build(root, model) {
    let state, found;
    // The first of all that is drawn, so that the rest finds it calculated.
    model.bind(() => {
      state = Object.fromEntries(STATE.map((name) => [name, model.get(name)]));
      found = attend(state);
    });

    const table = (kind, caption, rows, columns, edit = null) => {
      const made = grid({ caption, rows, columns, edit });
      const title = made.element.querySelector("caption");
      const name = (own, words) => {
        title.textContent = words;
        title.className = own && `mha-self-attention-own mha-${own}`;
      };
      name(kind, caption);
      return { ...made, name };
    };
    const first = Object.fromEntries(STATE.map((name) => [name, model.get(name)]));
    const inputs = () => {
      const made = [
        ["tokens", "", "Words X", WORDS, FEATURES],
        ...Object.entries(MATRICES).map(([kind, caption]) => [`${kind}_matrix`, kind, caption, FEATURES, PAIR]),
      ].map(([name, kind, caption, rows, columns]) => {
        const put = (row, column, typed) => {
          const value = clamp(typed, -MOST, MOST);
          if (value !== typed) fields[row][column].value = value; // what is seen is what counts, at once
          model.set({
            [name]: model.get(name).map((line, i) => line.map((old, j) => (i === row && j === column ? value : old))),
          });
        };
        const { element, fill, data } = table(kind, caption, rows, columns, put);
        const fields = data.map((line) => line.map((cell) => cell.firstChild));
        fields.flat().forEach((field) => set(field, { min: -MOST, max: MOST }));
        model.bind(() => fill(model.get(name)));
        return element;
      });
      // A field that was left empty shows again what counts.
      const back = h("div", { class: "mha-controls" }, button(model, "Reset", () => model.set(first)));
      const [words, ...matrices] = made;
      return h(
        "div",
        { class: "mha-row mha-self-attention-inputs", onfocusout: () => model.refresh() },
        words,
        h("div", { class: "mha-row" }, ...matrices, back),
      );
    };

    // What is chosen in the table that a step makes; what that number comes from in the tables that it reads.
    const cell = ([i, j]) => (row, column) => row === i && column === j;
    const inRow = (i) => (row) => row === i;
    const inColumn = (j) => (_, column) => column === j;
    const show = (made, matrix, { picked, source, look = () => ({}) }) => {
      const places = matrix.flat().every((value) => Number.isInteger(value)) ? 0 : 2;
      made.fill(matrix, (value, i, j) => {
        const own = look(value, i, j);
        const kind = picked?.(i, j) ? "mha-self-attention-chosen" : source?.(i, j) ? "mha-self-attention-source" : "";
        return { text: number(value, places), ...own, class: [kind, own.class].filter(Boolean).join(" ") || null };
      });
    };
    const scored = (matrix) => {
      const limit = Math.max(...matrix.flat().map(Math.abs)) || 1;
      return (value) => balance(value, limit);
    };
    const struck = (matrix) => (value, i, j) =>
      found.mask[i][j] ? scored(matrix)(value) : { class: "mha-self-attention-hidden mha-self-attention-struck", title: "hidden" };

    const square = (caption) => table("", caption, WORDS, WORDS);
    const projected = {
      words: table("", "Words X", WORDS, FEATURES),
      matrix: table("", "", FEATURES, PAIR),
      made: table("", "", WORDS, PAIR),
    };
    const [query, key] = [table("query", "Queries Q", WORDS, PAIR), table("key", "Keys K", WORDS, PAIR)];
    const raw = square("Scores Q Kᵀ: rows ask columns");
    const [unscaled, scaled] = [square("Scores Q Kᵀ"), square("Scaled scores")];
    const [mask, masked] = [square("Mask: ✓ may attend, ✗ may not"), square("Masked scores")];
    const [before, weights] = [square("Masked scores"), square("Weights: rows sum to 1 (to 0 if all is hidden)")];
    const [shares, value] = [square("Weights"), table("value", "Values V", WORDS, PAIR)];
    const output = table("", "Output", WORDS, PAIR);
    [raw, scaled, masked, weights].forEach((made) => pickable(model, made, "column"));
    [projected.made, output].forEach((made) => pickable(model, made, "entry"));

    const masks = () =>
      h(
        "div",
        { class: "mha-controls" },
        toggle(model, { name: "causal", label: "causal mask" }),
        h(
          "fieldset",
          { class: "mha-choice" },
          h("legend", {}, "real, not padding:"),
          ...WORDS.map((word, i) => {
            const box = h("input", {
              type: "checkbox",
              onchange: () => model.set({ real: model.get("real").map((old, j) => (j === i ? box.checked : old)) }),
            });
            model.bind(() => (box.checked = model.get("real")[i]));
            return h("label", {}, box, h("span", {}, word));
          }),
        ),
      );
    const which = choice(model, {
      name: "projection", label: "make the", options: [["query", "queries"], ["key", "keys"], ["value", "values"]],
    });
    const row = (...made) => h("div", { class: "mha-row" }, ...made.map(({ element }) => element));
    const panels = [
      [inputs()],
      [h("div", { class: "mha-controls" }, which), row(projected.words, projected.matrix, projected.made)],
      [row(query, key, raw)],
      [row(unscaled, scaled)],
      [masks(), row(mask, masked)],
      [masks(), row(before, weights)],
      [masks(), row(shares, value, output)],
    ].map((parts, step) => h("div", {}, h("p", { class: "mha-title" }, `${NUMBERS[step]}. ${TITLES[step]}`), ...parts));

    const change = h("details", {}, h("summary", {}, `Change the inputs or the matrices (numbers between −${MOST} and ${MOST})`));
    set(change, {
      ontoggle: () => {
        if (!change.open || change.children.length > 1) return;
        change.append(inputs());
        model.refresh();
      },
    });
    const later = h("div", { class: "mha-controls" }, change);
    const way = steps(model, { name: "step", titles: TITLES });
    way.querySelectorAll("[title]").forEach((dot, step) => {
      dot.textContent = NUMBERS[step];
      set(dot, { "aria-label": `Step ${NUMBERS[step]}: ${TITLES[step]}` });
    });
    const picked = () =>
      Object.fromEntries(["step", "projection", "row", "column", "entry"].map((name) => [name, model.get(name)]));
    const said = h("div", { class: "mha-self-attention-said" }, sentence(model, () => origin(state, found, picked())));
    root.append(
      h("p", { class: "mha-title" }, "Self-attention in six steps and a mask, with every number"),
      h(
        "p",
        { class: "mha-how" },
        "Go forward and back. From step 2 on, choose a cell, by pointer or with Tab and the arrow keys, and read where its number comes from.",
      ),
      way,
      said,
      h("div", { class: "mha-self-attention-stage" }, ...panels),
      later,
    );

    model.bind(() => {
      const [i, j, entry] = ["row", "column", "entry"].map((name) => model.get(name));
      panels.forEach((panel, step) => set(panel, { "data-now": step === model.get("step") }));
      later.style.visibility = model.get("step") ? "" : "hidden"; // the first step shows the same fields
      if (!model.get("step")) change.open = false; // or they would keep their room

      const kind = model.get("projection");
      projected.matrix.name(kind, MATRICES[kind]);
      projected.made.name(kind, PLURAL[kind]);
      show(projected.words, state.tokens, { source: inRow(i) });
      show(projected.matrix, state[`${kind}_matrix`], { source: inColumn(entry) });
      show(projected.made, found[kind], { picked: cell([i, entry]) });

      show(query, found.query, { source: inRow(i) });
      show(key, found.key, { source: inRow(j) });
      show(raw, found.products, { picked: cell([i, j]), look: scored(found.products) });

      show(unscaled, found.products, { source: cell([i, j]), look: scored(found.products) });
      show(scaled, found.scores, { picked: cell([i, j]), look: scored(found.scores) });

      const mark = (seen) => ({ text: seen ? "✓" : "✗", class: seen ? "" : "mha-self-attention-hidden" });
      show(mask, found.mask, { source: cell([i, j]), look: mark });
      show(masked, found.scores, { picked: cell([i, j]), look: struck(found.scores) });

      show(before, found.scores, { source: inRow(i), look: struck(found.scores) });
      const shaded = (weight) => ({ text: number(weight), ...shade(weight) });
      show(weights, found.weights, { picked: cell([i, j]), look: shaded });

      show(shares, found.weights, { source: inRow(i), look: shaded });
      show(value, found.value, { source: inColumn(entry) });
      show(output, found.output, { picked: cell([i, entry]) });
    });
  },
};
