// Chapter 5: every head of the pretrained model on a dozen sentences; a sentence's maps are loaded once they are asked for.
import { clamp, h, loader, menu, number, sentence, set, shade } from "./kit.mjs";
import { sum } from "./maths.mjs";

const LAYERS = 6;
const HEADS = 12;
const STEPS = 65535; // a weight is stored in two bytes
const WRITTEN_FROM = 0.05; // a lower weight is left to its shade, so that the eye finds the high ones

/** The sentences, and the word pieces that the model's tokenizer cuts them into. */
export const SENTENCES = {
  "The cat sat on the mat.": "the cat sat on the mat .",
  "One door closed, another door opened.": "one door closed , another door opened .",
  "New shop, old shop.": "new shop , old shop .",
  "The river rose, and the river fell.": "the river rose , and the river fell .",
  "The animal did not cross the street because it was too tired.":
    "the animal did not cross the street because it was too tired .",
  "The animal did not cross the street because it was too wide.":
    "the animal did not cross the street because it was too wide .",
  "The dog barked until its owner came.": "the dog barked until its owner came .",
  "Every spring the storks return to their nest.": "every spring the st ##or ##ks return to their nest .",
  "The keys on the table are gone.": "the keys on the table are gone .",
  "The bank lent her money for a house.": "the bank lent her money for a house .",
  "The bank of the river was covered in reeds.": "the bank of the river was covered in reed ##s .",
  "We need apples, bread, milk, and a cake.": "we need apples , bread , milk , and a cake .",
};

/** The tokens of a sentence, the marks at both ends included. */
export const tokensOf = (text) => `[CLS] ${SENTENCES[text]} [SEP]`.split(" ");

/** Roles: whether a key would be a hit for a query. */
export const ROLES = {
  itself: (tokens, query, key) => key === query,
  "previous token": (tokens, query, key) => key === query - 1,
  "next token": (tokens, query, key) => key === query + 1,
  "[CLS]": (tokens, query, key) => key === 0,
  "[SEP]": (tokens, query, key) => key === tokens.length - 1,
  "same word elsewhere": (tokens, query, key) => key !== query && tokens[key] === tokens[query],
};

/** Share of its weight that a head puts on the hits of a role, over the queries that have one; null if none has. */
export function roleScore(map, tokens, role) {
  const hits = map.map((row, query) => row.filter((_, key) => ROLES[role](tokens, query, key)));
  const asked = hits.filter((weights) => weights.length);
  return asked.length ? sum(asked.flat()) / asked.length : null;
}

/** The map of a head that looks at all tokens alike. */
export const evenMap = (length) => Array.from({ length }, () => Array(length).fill(1 / length));

/** Where the largest of some numbers stand, the largest first. */
export const largest = (numbers, count) =>
  numbers.map((_, i) => i).sort((a, b) => numbers[b] - numbers[a]).slice(0, count);

/** Read maps of so many tokens from bytes: one after the other, row by row. */
export function unpack(bytes, length) {
  const weights = [...new Uint16Array(Uint8Array.from(bytes).buffer)].map((steps) => steps / STEPS);
  const rows = Array.from({ length: weights.length / length }, (_, i) => weights.slice(i * length, (i + 1) * length));
  return Array.from({ length: rows.length / length }, (_, i) => rows.slice(i * length, (i + 1) * length));
}

/** What is there before anything is loaded: the bytes of one map. */
export const SAMPLE = {
  sentence: "The cat sat on the mat.", layer: 4, head: 5,
  bytes: () => Uint8Array.from(atob(SAMPLE_BYTES), (letter) => letter.charCodeAt(0)),
};
const SAMPLE_BYTES =
  "FfGnAa4DCgLpAMEBggJBAR4Bg++WA/AC6QAmAQ8CCgHEAgoCr9YDBqEJ1AgvA3gEQARvAoEC1OQHAswC4QYnA/EF0wNHAUYBu/BDAbkChQF6" +
  "Ao8B/gFhAloBS/CeAUMDfgEIAawC0wEbArQBae9rAM8BVwMzAjMBXAacAKcAdvGaAvUCQAD+APcBXgCaA80BUe9qA3sDOgAdASECkwCeAyEC";

const nameOf = (place) => `L${Math.floor(place / HEADS)}H${place % HEADS}`;
const quoted = (token) => (/^\[.*\]$/.test(token) ? token : `“${token}”`);
const tight = (weight) => number(weight).replace("1.00", "1").replace(/^0/, "");
const short = (weight) => (weight < WRITTEN_FROM ? "" : tight(weight));
// In a closed menu on a phone, the two that differ in their last word alone can be told apart.
const listed = (text) => text.replace("did not cross the street because", "…");
const where = (role) => (role.startsWith("[") ? role : role === "itself" ? "the token itself" : `the ${role}`);
const RANKS = { 1: "the most", 2: "the second most", 3: "the third most" };

/** The map as a picture, a pixel a weight. */
function thumbnail(map) {
  const canvas = h("canvas", { width: map.length, height: map.length });
  const pen = canvas.getContext("2d");
  map.forEach((row, query) =>
    row.forEach((weight, key) => {
      pen.fillStyle = shade(weight).background;
      pen.fillRect(key, query, 1, 1);
    }),
  );
  return canvas;
}

export const figure = {
  name: "pretrained",
  label: "Every head of the pretrained model on a dozen sentences",
  build(root, model) {
    const loaded = new Map(); // from a sentence to its maps
    let willing = false; // to load what else is asked for: the reader has pressed the button once
    let tokens = [];
    const place = () => model.get("layer") * HEADS + model.get("head");
    const query = () => Math.min(model.get("token"), tokens.length - 1);
    const maps = () => loaded.get(model.get("sentence"));
    const isSample = () => ["sentence", "layer", "head"].every((part) => model.get(part) === SAMPLE[part]);
    const [sample] = unpack(SAMPLE.bytes(), tokensOf(SAMPLE.sentence).length);
    const shown = () => maps()?.[place()] ?? (isSample() ? sample : null);
    const scores = () => {
      const role = model.get("role");
      return role === "none" ? null : maps()?.map((map) => roleScore(map, tokens, role));
    };

    // ---- all heads ----
    const pick = (at) => model.set({ layer: Math.floor(at / HEADS), head: at % HEADS });
    const cells = Array.from({ length: LAYERS * HEADS }, (_, at) =>
      h("div", { role: "gridcell", tabindex: -1, onclick: () => maps() && go(at) }, h("div", {}), h("span", {})),
    );
    const go = (at) => {
      pick(at);
      cells[at].focus();
    };
    const walk = (event) => {
      const [layer, head] = [model.get("layer"), model.get("head")];
      const to = {
        ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1], Home: [layer, 0], End: [layer, HEADS - 1],
        ArrowUp: [layer - 1, head], ArrowDown: [layer + 1, head],
      }[event.key];
      if (!to || !maps()) return;
      event.preventDefault();
      go(clamp(to[0], 0, LAYERS - 1) * HEADS + clamp(to[1], 0, HEADS - 1));
    };
    const header = (role, ...words) => h("span", { role }, ...words);
    const tops = Array.from({ length: HEADS }, (_, head) => header("columnheader", `H${head}`));
    const overview = h(
      "div",
      { class: "mha-pretrained-heads", role: "grid", "aria-label": "All heads, a row a layer: choose one", onkeydown: walk },
      h("div", { role: "row" }, header("columnheader", h("span", { class: "mha-heard" }, "layer")), ...tops),
      ...Array.from({ length: LAYERS }, (_, layer) =>
        h("div", { role: "row" }, header("rowheader", `L${layer}`), ...cells.slice(layer * HEADS, (layer + 1) * HEADS)),
      ),
    );

    // ---- above them: the button to load, later the heads with the highest scores ----
    const words = h("span", {});
    const best = [0, 1, 2].map((rank) =>
      h("button", { type: "button", onclick: () => pick(largest(scores(), 3)[rank]) }),
    );
    const strip = h("div", { class: "mha-pretrained-strip" });
    const offer = (text) => {
      const count = tokens.length;
      const size = Math.round((2 * LAYERS * HEADS * count ** 2) / 1000);
      const box = loader(model, {
        label: `Load all 72 maps (${size} kB)`,
        pieces: [Object.keys(SENTENCES).indexOf(text)],
        ready([bytes], held) {
          loaded.set(text, unpack(bytes, count));
          model.refresh();
          if (held) cells[place()].focus({ preventScroll: true });
        },
      });
      const press = box.querySelector("button");
      press.addEventListener("click", () => (willing = true));
      strip.replaceChildren(box, words);
      if (willing) press.click();
    };

    // ---- one head ----
    const group = model.group();
    const [mapTitle, listTitle] = [h("caption", {}), h("caption", {})];
    const [mapBox, listBox] = ["map", "list"].map((part) => h("div", { class: `mha-pretrained-${part}` }));
    let radios, rows, weights;
    const layOut = () => {
      for (const box of [mapBox, listBox]) box.style.setProperty("--rows", tokens.length); // whose height stays the same
      mapBox.classList.toggle("mha-pretrained-long", tokens.length > 11);
      const choose = (i) => () => model.set({ token: i });
      radios = tokens.map((_, i) => h("input", { type: "radio", name: group, onchange: choose(i) }));
      weights = {
        map: tokens.map(() => tokens.map(() => h("td", {}))),
        list: tokens.map(() => [document.createTextNode(""), h("i", {})]),
      };
      rows = tokens.map((token, i) => {
        const label = h("th", { scope: "row" }, h("label", {}, radios[i], h("span", {}, token)));
        return h("tr", { onclick: choose(i) }, label, ...weights.map[i]);
      });
      const head = (...words) => h("th", { scope: "col" }, ...words);
      const corner = h("td", {}, "query ↓", h("b", {}, "key →"));
      mapBox.replaceChildren(
        h(
          "table",
          {},
          mapTitle,
          h("thead", {}, h("tr", {}, corner, ...tokens.map((token) => head(h("span", {}, token))))),
          h("tbody", {}, ...rows),
        ),
      );
      listBox.replaceChildren(
        h(
          "table",
          {},
          listTitle,
          h("thead", {}, h("tr", {}, head("key"), head("weight"))),
          h(
            "tbody",
            {},
            ...tokens.map((token, i) => h("tr", {}, h("th", { scope: "row" }, token), h("td", {}, ...weights.list[i]))),
          ),
        ),
      );
    };

    // Bound before all that reads the tokens.
    let drawn = {};
    model.bind(() => {
      const text = model.get("sentence");
      if (drawn.text === text && drawn.maps === maps()) return;
      if (drawn.text !== text) {
        tokens = tokensOf(text);
        layOut();
      }
      cells.forEach((cell, at) => cell.firstChild.replaceChildren(...(maps() ? [thumbnail(maps()[at])] : [])));
      drawn = { text, maps: maps() };
      if (maps()) strip.replaceChildren(words, ...best);
      else offer(text);
    });

    const called = (i) => {
      if (i === query()) return "itself";
      return quoted(tokens[i]) + (tokens.filter((token) => token === tokens[i]).length > 1 ? ` at position ${i}` : "");
    };
    const twin = sentence(model, () => {
      const [map, role] = [shown(), model.get("role")];
      if (!map) return "The maps of this sentence are not loaded yet.";
      const row = map[query()];
      const found = largest(row, 3).filter((i) => number(row[i]) !== "0.00").map((i) => `${called(i)} (${number(row[i])})`);
      const looks = `In ${nameOf(place())}, ${quoted(tokens[query()])} looks at ${found.join(", then at ")}.`;
      if (role === "none") return looks;
      const [score, even] = [map, evenMap(tokens.length)].map((each) => roleScore(each, tokens, role));
      if (score === null) return `${looks} No token stands twice here, so nothing can be scored.`;
      const rank = 1 + (scores() || []).filter((other) => other > score).length;
      const among = maps() ? `, ${RANKS[rank] ?? `number ${rank}`} of all 72` : "";
      const over = role === "same word elsewhere" ? "Over the tokens that stand twice, the" : "The";
      return (
        `${looks} ${over} head puts ${number(score)} of its weight on ${where(role)}${among}; ` +
        `even weights would put ${number(even)} there.`
      );
    });

    root.append(
      h("p", { class: "mha-title" }, "Six layers of twelve heads: where does each one look?"),
      h(
        "p",
        { class: "mha-how" },
        "Load the maps of a sentence. Choose a head (click, or arrow keys), then a query in its large map.",
      ),
      h(
        "div",
        { class: "mha-controls mha-pretrained-controls" },
        menu(model, { name: "sentence", label: "sentence", options: Object.keys(SENTENCES).map((text) => [text, listed(text)]) }),
        menu(model, {
          name: "role", label: "score heads for",
          options: [["none", "nothing"], ...Object.keys(ROLES).map((role) => [role, role])],
        }),
      ),
      strip,
      overview,
      h("div", { class: "mha-pretrained-says" }, twin),
      h("div", { class: "mha-row" }, mapBox, listBox),
    );

    model.bind(() => {
      const [map, found, role, i] = [shown(), scores(), model.get("role"), query()];
      set(overview, { "aria-disabled": maps() ? null : "true" });
      cells.forEach((cell, at) => {
        const score = found ? found[at] : null;
        const [layer, head] = [Math.floor(at / HEADS), at % HEADS];
        set(cell, {
          tabindex: maps() && at === place() ? 0 : -1,
          "aria-selected": `${at === place()}`,
          "aria-label": `layer ${layer}, head ${head}${score === null ? "" : `: ${number(score)} on ${where(role)}`}`,
        });
        cell.lastChild.textContent = score === null ? "" : tight(score);
        Object.assign(cell.lastChild.style, score === null ? { background: "", color: "" } : shade(score));
      });
      const scored = found && found[0] !== null;
      if (!maps()) words.textContent = role === "none" ? "Load the maps to see all heads." : "Load the maps to score all heads.";
      else words.textContent = scored
        ? "Highest:"
        : found
          ? "No token stands twice in this sentence."
          : "Can you see the head that looks at the previous token? Then score all heads for it.";
      best.forEach((button, rank) => {
        button.hidden = !scored;
        if (scored) button.textContent = `${nameOf(largest(found, 3)[rank])} ${number(found[largest(found, 3)[rank]])}`;
      });

      mapTitle.textContent = `${nameOf(place())}: a row for each query`;
      listTitle.textContent = `${nameOf(place())}: the row of ${quoted(tokens[i])}`;
      radios.forEach((radio, token) => (radio.checked = token === i));
      rows.forEach((row, token) => set(row, { class: token === i ? "mha-pretrained-chosen" : null }));
      weights.map.forEach((row, from) =>
        row.forEach((cell, to) => {
          cell.textContent = map ? short(map[from][to]) : "";
          Object.assign(cell.style, map ? shade(map[from][to]) : { background: "", color: "" });
        }),
      );
      weights.list.forEach(([text, bar], to) => {
        text.data = map ? number(map[i][to]) : "–";
        bar.style.width = map ? `${(5 * Number(number(map[i][to]))).toFixed(2)}rem` : "0"; // none where 0.00 is written
      });
    });
  },
};
