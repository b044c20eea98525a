// Chapter 4: how view and transpose count the same memory anew, from (batch, length, d_model) to (batch, head, length, d_head).
import { animation, button, choice, clamp, h, motionless, sentence, set, steps } from "./kit.mjs";

// A tensor is a shape, the strides it is counted with, and the memory that it counts: which number lies at each address.

const product = (sizes) => sizes.reduce((a, b) => a * b, 1);

/** The strides of a tensor that lies in memory in the order in which it is read. */
export const evenStrides = (shape) => shape.map((_, axis) => product(shape.slice(axis + 1)));

/** The index of each entry, in the order of reading. */
export const indices = (shape) =>
  Array.from({ length: product(shape) }, (_, place) =>
    evenStrides(shape).map((stride, axis) => Math.floor(place / stride) % shape[axis]),
  );

/** The address of one entry. */
export const address = ({ strides }, index) => index.reduce((total, i, axis) => total + i * strides[axis], 0);

/** The address of each entry, in the order of reading. */
export const addresses = (tensor) => indices(tensor.shape).map((index) => address(tensor, index));

/** What the tensor holds, in the order of reading. */
export const contents = (tensor) => addresses(tensor).map((place) => tensor.memory[place]);

/** Swap two axes: their sizes and their strides, and nothing in memory. */
export function swapped({ shape, strides, memory }, one, other) {
  const order = shape.map((_, axis) => (axis === one ? other : axis === other ? one : axis));
  return { shape: order.map((axis) => shape[axis]), strides: order.map((axis) => strides[axis]), memory };
}

/** Count the same memory in another shape; null if no strides can, as then `view` is refused. */
export function viewed(tensor, shape) {
  if (product(shape) !== product(tensor.shape)) return null;
  const walks = evenWalks(tensor);
  let walk = walks.pop() ?? { steps: 1, stride: tensor.strides.at(-1) };
  let taken = 1;
  const strides = shape.map(() => 0);
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    if (shape[axis] > 1 && taken === walk.steps) [walk, taken] = [walks.pop(), 1];
    strides[axis] = taken * walk.stride;
    taken *= shape[axis];
    if (walk.steps % taken) return null;
  }
  return { shape, strides, memory: tensor.memory };
}

/** Neighbouring axes that can be walked through with one stride, taken together. */
function evenWalks({ shape, strides }) {
  const walks = [];
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    const walk = walks[0];
    if (shape[axis] === 1) continue;
    if (walk && strides[axis] === walk.steps * walk.stride) walk.steps *= shape[axis];
    else walks.unshift({ steps: shape[axis], stride: strides[axis] });
  }
  return walks;
}

/** Write the numbers down anew, in the order of reading. */
export const copied = (tensor) => ({ shape: tensor.shape, strides: evenStrides(tensor.shape), memory: contents(tensor) });

/** The tensor itself if it lies in memory in the order of reading, else a copy that does. */
export const contiguous = (tensor) => (addresses(tensor).every((place, i) => place === i) ? tensor : copied(tensor));

/** A view where that is possible, and a view of a copy where not. */
export const reshaped = (tensor, shape) => viewed(tensor, shape) ?? viewed(copied(tensor), shape);

/** All tensors of the figure. Each number is known by its place in `x`. `mayView` says whether the merge needs no copy. */
export function machine({ batch, length, heads, d_head }) {
  const whole = [batch, length, heads * d_head];
  const x = { shape: whole, strides: evenStrides(whole), memory: Array.from({ length: product(whole) }, (_, i) => i) };
  const pieces = viewed(x, [batch, length, heads, d_head]);
  const split = swapped(pieces, 1, 2);
  const mixed = copied(split); // what attention returns lies in memory of its own
  const back = swapped(mixed, 1, 2);
  return {
    x, pieces, split, mixed, back,
    merged: reshaped(back, whole),
    mayView: viewed(back, whole) !== null,
    wrongSplit: viewed(x, [batch, heads, length, d_head]),
    wrongMerge: viewed(mixed, whole),
  };
}

const SENTENCES = [["The", "cat", "sat", "on"], ["A", "dog", "ran", "off"]];
const ORDER = ["x", "pieces", "split", "mixed", "back", "merged"]; // the tensor of each step
const TITLES = ["x, as it lies in memory", "view cuts", "transpose swaps", "what attention returns", "transpose swaps back", "reshape joins"];

const tuple = (numbers) => `(${numbers.join(", ")})`;
const list = (words) => words.join(", ").replace(/, ([^,]*)$/, " and $1");
const index = (numbers) => `[${numbers.join(", ")}]`;

export const figure = {
  name: "multi-head",
  label: "The shape machine: split and merge",
  build(root, model) {
    let sizes, tensors, boards, walked;

    // A number of `x` is known by where it comes from.
    const width = () => sizes.heads * sizes.d_head;
    const origin = (id) => [Math.floor(id / width() / sizes.length), Math.floor(id / width()) % sizes.length, id % width()];
    const word = (id) => SENTENCES[origin(id)[0]][origin(id)[1]];
    const name = (id) => `${word(id)}·${origin(id)[2]}`;
    const chosen = () => {
      const [b, t, f] = [["sentence", sizes.batch], ["word", sizes.length], ["feature", width()]].map(([part, size]) =>
        clamp(model.get(part), 0, size - 1),
      );
      return (b * sizes.length + t) * width() + f;
    };
    const choose = (id) => {
      const [sentence, word, feature] = origin(id);
      model.set({ sentence, word, feature });
    };
    /** Where the chosen number is in a tensor. */
    const found = (tensor) => indices(tensor.shape)[contents(tensor).indexOf(chosen())];

    /** Scroll a table, and not the page, until a cell is seen. */
    function reveal(cell) {
      const part = cell.closest(".mha-scroll");
      const middle = cell.parentElement.offsetLeft + (cell.offsetWidth - (part?.clientWidth ?? 0)) / 2;
      if (part && Math.abs(part.scrollLeft - middle) > (part.clientWidth - cell.offsetWidth) / 2) part.scrollLeft = middle;
    }

    // ---- a board: cells that can be chosen, of which one can be reached with Tab -------------------------------------

    function board(ids, columns) {
      const press = (place) => {
        walk.stop();
        choose(ids[place]);
      };
      const buttons = ids.map((id, place) =>
        h(
          "span",
          {
            role: "button",
            class: `mha-multi-head-cell mha-multi-head-word-${origin(id)[1]}`,
            onclick: () => press(place),
            onkeydown: (event) => {
              const start = place - (place % columns);
              const next = {
                ArrowLeft: place - 1, ArrowRight: place + 1, ArrowUp: place - columns, ArrowDown: place + columns,
                Home: start, End: Math.min(start + columns, ids.length) - 1, Enter: place, " ": place,
              }[event.key];
              if (!buttons[next]) return;
              event.preventDefault();
              press(next);
              buttons[next].focus();
            },
          },
          name(id),
        ),
      );
      const show = () =>
        buttons.forEach((cell, place) => {
          const on = ids[place] === chosen();
          set(cell, { tabindex: on && !cell.closest(".mha-multi-head-off") ? 0 : -1, "aria-pressed": `${on}` });
          cell.classList.toggle("mha-multi-head-chosen", on);
          if (on) reveal(cell);
        });
      return { buttons, show };
    }

    /** Memory as one row. What each number counts as in the tensor of the step stands below it. */
    function memory(title, tensor, reading) {
      const { buttons, show } = board(tensor.memory, Infinity);
      const label = h("th", { scope: "row" });
      const counts = buttons.map(() => h("td", {}));
      const row = (words, cells) => h("tr", {}, h("th", { scope: "row" }, words), ...cells);
      const element = h(
        "div",
        { class: "mha-multi-head-panel" },
        h("p", {}, h("b", {}, title)),
        h(
          "div",
          { class: "mha-scroll" },
          h(
            "table",
            { "aria-label": title },
            h("tbody", {},
              row("address", buttons.map((_, place) => h("th", { scope: "col" }, place))),
              row("number", buttons.map((cell) => h("td", {}, cell))),
              h("tr", {}, label, ...counts),
            ),
          ),
        ),
      );
      boards.push(() => {
        show();
        const { words, order } = reading();
        label.textContent = words;
        order.forEach((place, count) => (counts[place].textContent = count));
      });
      return element;
    }

    /** One tensor, as it is read: the last axis across, the others down, the first one outermost. */
    function panel({ title, code, letters, tensor, right = null }) {
      const { shape, strides } = tensor;
      const ids = contents(tensor);
      const columns = shape.at(-1);
      const outer = shape.slice(0, -1);
      const { buttons, show } = board(ids, columns);
      const inPlace = right && ids.map((id, place) => id === contents(right)[place]);
      const rows = indices(outer).map((at, i) => {
        const labels = at.flatMap((number, axis) => {
          const span = product(outer.slice(axis + 1));
          if (i % span) return [];
          const words = letters[axis] === "t" ? `${number} ${SENTENCES[at[0]][number]}` : number;
          return [h("th", { scope: span > 1 ? "rowgroup" : "row", rowspan: span > 1 && span }, words)];
        });
        const [from, to] = [i * columns, (i + 1) * columns];
        const mark = right ? [h("td", { class: "mha-multi-head-mark" }, inPlace.slice(from, to).every(Boolean) ? "✓" : "✗")] : [];
        const first = i % outer.at(-1) === 0 && outer.length > 2;
        return h("tr", { class: first && "mha-multi-head-first" }, ...labels, ...buttons.slice(from, to).map((cell) => h("td", {}, cell)), ...mark);
      });
      const sum = h("p", {});
      const element = h(
        "div",
        { class: "mha-multi-head-panel" },
        h("p", {}, h("b", {}, title), " ", h("code", {}, code)),
        h("p", {}, `shape ${tuple(shape)}`),
        h("p", {}, `strides ${tuple(strides)}`),
        h(
          "div",
          { class: "mha-scroll" },
          h(
            "table",
            { "aria-label": code },
            h("thead", {}, h("tr", {},
              ...letters.slice(0, -1).map((letter) => h("th", { scope: "col" }, letter)),
              ...Array.from({ length: columns }, (_, i) => h("th", { scope: "col" }, `${letters.at(-1)} ${i}`)),
              ...(right ? [h("th", { scope: "col" }, "row right?")] : []),
            )),
            h("tbody", {}, ...rows),
          ),
        ),
        h("p", {}, `address ${letters.map((letter, axis) => `${letter}·${strides[axis]}`).join(" + ")}`),
        sum,
        ...(right ? [h("p", {}, `numbers in the right place: ${inPlace.filter(Boolean).length} of ${ids.length}`)] : []),
      );
      boards.push(() => {
        show();
        const at = found(tensor);
        sum.textContent = `= ${at.map((i, axis) => `${i}·${strides[axis]}`).join(" + ")} = ${address(tensor, at)}`;
      });
      return element;
    }

    // ---- reading a tensor in its order, number by number ------------------------------------------------------------------------

    const current = () => tensors[ORDER[model.get("step")]];
    let waited = 0;
    const walk = animation(model, (passed) => {
      waited += passed;
      if (waited < 500) return true;
      waited = 0;
      const ids = contents(current());
      const next = Math.min(ids.indexOf(chosen()) + 1, ids.length - 1);
      if (next === ids.length - 1) walk.stop();
      choose(ids[next]);
      return walk.running;
    });
    const read = button(model, "Read in order", () => {
      if (walk.running) {
        walk.stop();
        model.refresh();
        return;
      }
      waited = 0;
      const ids = contents(current());
      if (!motionless()) walk.start();
      choose(ids[motionless() ? ids.length - 1 : 0]);
    });

    // ---- words -------------------------------------------------------------------------------------------------------

    const explanations = () => {
      const { x, back, mayView } = tensors;
      const row = addresses(back).slice(0, width()).join(", ");
      return [
        `Memory is one row of numbers. Shape and strides say how it is counted: here ${x.strides[1]} further for the next word (t), 1 further for the next feature (f).`,
        `view cuts each word’s features into ${sizes.heads} × ${sizes.d_head}, one piece a head. It moves nothing: there is one axis more to count by, and one stride.`,
        "transpose(1, 2) swaps the axes t and h, and their strides. It moves nothing either: memory is read in another order. view alone gives the same shape, but reads memory as it lies.",
        "Attention has made new numbers in new memory: all results of head 0, then those of the next head.",
        "transpose(1, 2) swaps the strides back. The pieces of a word are read one after the other, but they still lie where they lay.",
        mayView
          ? `The row of “The” is read at ${row}: an even walk, which one stride can do. So view is allowed here, and reshape copies nothing.`
          : `The row of “The” is read at ${row}: no even walk, so no stride can do it and view is refused. reshape copies: it writes the numbers down anew, in the order of reading.`,
      ];
    };

    function said() {
      const step = model.get("step");
      const { split, wrongSplit, wrongMerge, back, merged, mayView } = tensors;
      const id = chosen();
      const [b, t] = origin(id);
      const words = SENTENCES[b].slice(0, sizes.length);
      const at = found(current());
      const place = address(current(), at);
      if (step === 2) {
        if (sizes.heads === 1) return `“${name(id)}” is still at address ${place}. With one head there is nothing to swap: view alone gives the same.`;
        const [, head, taken] = found(wrongSplit);
        const ids = contents(wrongSplit).filter((_, i) => indices(wrongSplit.shape)[i].slice(0, 2).join() === `${b},${head}`);
        const seen = [...new Set(ids.map(word))];
        const agrees = `${found(split)}` === `${found(wrongSplit)}`;
        return (
          `“${name(id)}” is still at address ${place}, and it belongs to ${words[t]} in head ${at[1]}. ` +
          (agrees ? "The wrong way has it there too. " : `In the wrong way it counts as part of ${words[taken]} in head ${head}. `) +
          `There head ${head} gets pieces of ${list(seen)}${seen.length < words.length ? " alone" : ""}, and attention takes them for ${list(words)}.`
        );
      }
      if (step === 5) {
        const taken = found(wrongMerge);
        const moved = mayView ? `“${name(id)}” is still at address ${place}` : `“${name(id)}” was copied from address ${address(back, found(back))} to ${place}`;
        const agrees = `${taken}` === `${found(merged)}`;
        return `${moved}, in the row of ${words[t]}. ` + (sizes.heads === 1 ? "With one head, view alone gives the same." : agrees ? "The wrong way has it there too." : `The wrong way hands it to ${words[taken[1]]} as feature ${taken[2]}.`);
      }
      const what = step < 3 ? `feature ${origin(id)[2]} of ${words[t]}` : `found by head ${found(split)[1]} for ${words[t]}`;
      const still = step === 0 || step === 3 ? "lies" : "is still";
      return `“${name(id)}”, ${what}, ${still} at address ${place}; this tensor counts it as ${index(at)}.`;
    }

    // ---- the whole ---------------------------------------------------------------------------------------------------

    const halves = [h("div", {}), h("div", {})];
    const tales = TITLES.map(() => h("p", {}));
    const off = (element, hidden) => element.classList.toggle("mha-multi-head-off", hidden);
    let fromStep = []; // [element, the first step that shows it]

    function rebuild() {
      tensors = machine(sizes);
      boards = [];
      const { x, pieces, split, mixed, back, merged, mayView } = tensors;
      const whole = tuple(x.shape);
      const [b, t, hd, d, f] = ["b", "t", "h", "d", "f"];
      const other = sizes.heads === 1 ? "Also right:" : "Wrong:";
      const parts = {
        x: panel({ title: "1", code: "x", letters: [b, t, f], tensor: x }),
        pieces: panel({ title: "2", code: `pieces = x.view${tuple(pieces.shape)}`, letters: [b, t, hd, d], tensor: pieces }),
        split: panel({ title: "3", code: "pieces.transpose(1, 2)", letters: [b, hd, t, d], tensor: split, right: split }),
        wrongSplit: panel({ title: other, code: `x.view${tuple(split.shape)}`, letters: [b, hd, t, d], tensor: tensors.wrongSplit, right: split }),
        mixed: panel({ title: "4", code: "mixed", letters: [b, hd, t, d], tensor: mixed }),
        back: panel({ title: "5", code: "back = mixed.transpose(1, 2)", letters: [b, t, hd, d], tensor: back }),
        merged: panel({ title: "6", code: `back.reshape${whole}`, letters: [b, t, f], tensor: merged, right: merged }),
        wrongMerge: panel({ title: other, code: `mixed.view${whole}`, letters: [b, t, f], tensor: tensors.wrongMerge, right: merged }),
      };
      const row = (...panels) => h("div", { class: "mha-row mha-multi-head-row" }, ...panels);
      const reading = () => ({ words: "read as", order: addresses(current()) });
      const copying = () => (model.get("step") === 5 && !mayView ? { words: "copied to", order: addresses(back) } : reading());
      const copy = mayView
        ? h("p", {}, "No copy: step 6 reads the memory above.")
        : memory("The copy: new memory", merged, () => ({ words: "read as", order: addresses(merged) }));
      halves[0].replaceChildren(
        memory("Memory", x, reading),
        row(parts.x, parts.pieces, row(parts.split, parts.wrongSplit)),
      );
      halves[1].replaceChildren(
        memory("Memory", mixed, copying),
        row(parts.mixed, parts.back),
        copy,
        row(parts.merged, parts.wrongMerge),
      );
      fromStep = [
        ...ORDER.map((key, step) => [parts[key], step]),
        [parts.wrongSplit, 2],
        [parts.wrongMerge, 5],
        [copy, 5],
      ];
      explanations().forEach((words, step) => tales[step].replaceChildren(h("b", {}, `${step < 3 ? "Split" : "Merge"}: ${TITLES[step]}. `), words));
    }

    model.bind(() => {
      const now = Object.fromEntries(["batch", "length", "heads", "d_head"].map((size) => [size, model.get(size)]));
      const step = model.get("step");
      if (JSON.stringify(now) !== JSON.stringify(sizes)) {
        sizes = now;
        rebuild();
      }
      if (walked !== `${JSON.stringify(now)}${step}`) walk.stop();
      walked = `${JSON.stringify(now)}${step}`;
      halves.forEach((half, i) => off(half, (step < 3) !== (i === 0)));
      tales.forEach((tale, i) => off(tale, i !== step));
      fromStep.forEach(([element, first]) => off(element, step < first));
      boards.forEach((show) => show()); // last, as it asks what can be seen
      read.textContent = walk.running ? "Stop" : "Read in order";
    });

    const size = (name, label, from, to) =>
      choice(model, { name, label, options: Array.from({ length: to - from + 1 }, (_, i) => [from + i, `${from + i}`]) });
    root.append(
      h("p", { class: "mha-title" }, "The shape machine: one memory, counted in several ways"),
      h("p", { class: "mha-how" }, "Choose a number, with a click or with Tab and the arrow keys: it is marked wherever it is read. Go through the steps; change the sizes. “Read in order” moves the mark through this step’s tensor, number by number."),
      h("div", { class: "mha-controls" }, size("batch", "batch:", 1, 2), size("length", "length:", 2, 4), size("heads", "heads:", 1, 4), size("d_head", "d_head:", 1, 3)),
      h("div", { class: "mha-controls" }, steps(model, { name: "step", titles: TITLES }), read),
      h("div", { class: "mha-multi-head-stack" }, ...tales),
      h("div", { class: "mha-multi-head-said" }, sentence(model, said)),
      h("p", { class: "mha-note" }, "cat·1 is feature 1 of cat. Counted from 0: b sentence, t word, h head, f feature of the word, d feature in the head; “read as”: its turn when this step’s tensor is read."),
      h("div", { class: "mha-multi-head-stack" }, ...halves),
    );
    requestAnimationFrame(() => model.refresh()); // only in its place can memory be scrolled to the number
  },
};
