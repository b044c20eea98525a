// Chapter 8: the shipped translator writes German number words in the page, and its cross-attention is drawn.
import { button, choice, clamp, grid, h, loader, menu, number, sentence, set, shade, slider, toggle } from "./kit.mjs";
import { softmax, sum, transpose } from "./maths.mjs";
import { beamSearch, decode, encode, network } from "./transformer_model.mjs";
import { BEGIN, END, SOURCE, TARGET, german, understood } from "./transformer_words.mjs";

const LONGEST = 31;
const PIECES = 11;
const SHOWN = 5;
const ROOM = { rows: 12, texts: 4 }; // the longest German number below a million has 12 tokens, its end included

// What the model says of one number, token by token: the token, the log-probability of the text up to it, the best
// candidates, and the last layer's mean cross-attention. tests/figures/test_live_transformer.py makes it anew and compares.
export const EXAMPLE = {
  text: "342,087",
  tokens: [
    ["drei", -0.00129, [["drei", 0.99871], ["sechzig", 0.00012], ["vier", 0.00011], ["sieben", 0.00011], ["hundert", 0.0001]], [0.9848, 0.0147, 0.0001, 0.0004, 0.0, 0.0, 0.0]],
    ["hundert", -0.00207, [["hundert", 0.99922], ["und", 0.00018], ["<end>", 7e-05], ["drei", 5e-05], ["tausend", 5e-05]], [0.075, 0.9249, 0.0001, 0.0001, 0.0, 0.0, 0.0]],
    ["zwei", -0.0037, [["zwei", 0.99837], ["ein", 0.00023], ["fünf", 0.00021], ["neun", 0.00016], ["acht", 0.00011]], [0.2052, 0.0142, 0.0285, 0.7506, 0.0, 0.0002, 0.0012]],
    ["und", -0.00445, [["und", 0.99925], ["vierzig", 0.00012], ["tausend", 0.00012], ["hundert", 6e-05], ["zwanzig", 4e-05]], [0.1777, 0.3316, 0.2301, 0.0935, 0.1261, 0.0287, 0.0124]],
    ["vierzig", -0.00634, [["vierzig", 0.99811], ["achtzig", 0.0002], ["zwanzig", 0.00014], ["sechs", 0.00013], ["siebzig", 0.00012]], [0.0067, 0.014, 0.9474, 0.0083, 0.0001, 0.0233, 0.0001]],
    ["tausend", -0.00741, [["tausend", 0.99893], ["<end>", 0.00055], ["und", 9e-05], ["siebzehn", 5e-05], ["hundert", 4e-05]], [0.0113, 0.0526, 0.0398, 0.0032, 0.7259, 0.1066, 0.0606]],
    ["sieben", -0.00887, [["sieben", 0.99854], ["neun", 0.00033], ["ein", 0.00013], ["acht", 0.00012], ["siebzehn", 0.00011]], [0.0, 0.0, 0.0, 0.0003, 0.0023, 0.0186, 0.9789]],
    ["und", -0.00967, [["und", 0.9992], ["hundert", 0.00017], ["<end>", 0.00017], ["tausend", 0.00011], ["achtzig", 4e-05]], [0.0, 0.0001, 0.0001, 0.0001, 0.8152, 0.1198, 0.0648]],
    ["achtzig", -0.01267, [["achtzig", 0.99701], ["fünfzig", 0.00065], ["neunzig", 0.00037], ["siebzig", 0.00027], ["vierzig", 0.00025]], [0.0, 0.0, 0.0003, 0.0, 0.027, 0.9587, 0.0139]],
    ["<end>", -0.01319, [["<end>", 0.99948], ["eins", 8e-05], ["tausend", 7e-05], ["und", 7e-05], ["fünf", 5e-05]], [0.0, 0.0, 0.0, 0.0, 0.7046, 0.0751, 0.2203]],
  ],
};

/** Let the model write: the English words, and the stages of the search. */
export function translate(net, words, { beams, alpha }) {
  const source = encode(net, words.map((word) => SOURCE.ids.get(word)));
  const next = (before, token) => decode(net, source, before, token);
  return beamSearch(next, BEGIN, { beams, longest: LONGEST, end: END, alpha: beams > 1 ? alpha : 0 });
}

/** One map of cross-attention, a row a token, from all layers and heads: "L1" is the mean of a layer, "L1H2" one head. */
export function picked(maps, attention) {
  const [layer, head] = attention.slice(1).split("H").map(Number);
  return maps.map((map) =>
    head === undefined ? transpose(map[layer]).map((weights) => sum(weights) / weights.length) : map[layer][head],
  );
}

const ranked = ({ followed, ended }) =>
  [...followed.map((text) => ({ ...text, going: true })), ...ended].sort((a, b) => b.rank - a.rank);

/** What is shown at a stage: its texts, best first; the best one's map; and the candidates for that map's last token. */
export function scene(stage, attention) {
  const texts = ranked(stage);
  const { state } = texts[0];
  const chances = softmax(state.logits).map((chance, id) => [TARGET.tokens[id], chance]);
  return {
    texts: texts.map(({ tokens, ...text }) => ({ ...text, tokens: tokens.map((id) => TARGET.tokens[id]) })),
    map: picked(state.maps, attention),
    candidates: chances.sort((a, b) => b[1] - a[1]).slice(0, SHOWN),
  };
}

/** The same for the example, which needs no model. */
export function recorded(step) {
  const { tokens } = EXAMPLE;
  const going = step < tokens.length;
  const total = step ? tokens[step - 1][1] : 0;
  return {
    texts: [{ tokens: tokens.slice(0, step).map(([token]) => token), sum: total, rank: total, going }],
    map: tokens.slice(0, step + 1).map(([, , , weights]) => weights),
    candidates: tokens[going ? step : step - 1][2],
  };
}

/** Say how the translation ended. */
export function verdict({ tokens, sum: chance }, value) {
  const words = tokens.filter((token) => token !== "<end>").join(" ");
  const wrote = `“${words}”, with a probability of ${number(Math.exp(chance), 3)}`;
  if (value === null) return `It wrote ${wrote}. What you typed isn't a number by the model's rules, so this can't be checked.`;
  const right = [...german(value), "<end>"].join(" ");
  if (tokens.join(" ") === right) return `Right: it wrote ${wrote}.`;
  return `Wrong: it wrote ${wrote}, but by the rules it is “${german(value).join(" ")}”.`;
}

export const figure = {
  name: "transformer",
  label: "The translator at work",
  build(root, model) {
    let net = null;
    let trouble = "";
    let kept = {};

    /** The words read, and the last step and what is shown at one, which are missing until there is a model. */
    const now = () => {
      const [text, beams, alpha, attention] = ["text", "beams", "alpha", "attention"].map((name) => model.get(name));
      const { words = [], number: value = null, trouble: refused } = understood(text);
      if (refused) return { words, value, rows: 0, last: 0, refused }; // a linked widget may write what Python would refuse
      if (net) {
        const key = JSON.stringify([text, beams, alpha]);
        if (kept.key !== key) {
          const stages = translate(net, words, { beams, alpha });
          kept = { key, stages, rows: Math.max(...stages.map((stage) => ranked(stage)[0].state.maps.length)) };
        }
        const { stages, rows } = kept;
        return { words, value, rows, last: stages.length - 1, at: (step) => scene(stages[step], attention) };
      }
      const known = text === EXAMPLE.text && beams === 1 && attention === "L1";
      const size = EXAMPLE.tokens.length;
      return known ? { words, value, rows: size, last: size, at: recorded } : { words, value, rows: 0, last: 0 };
    };
    const step = () => clamp(model.get("step"), 0, now().last);
    // At the last stage as many as there may be, so that a longer search is followed to its end.
    const go = (to) => model.set({ step: to < now().last ? to : LONGEST });
    const stuck = (end) => trouble !== "" || step() === end;

    const field = h("input", { type: "text", size: 24, autocomplete: "off", spellcheck: "false", onchange: take });
    let taken;
    model.bind(() => {
      if (taken !== model.get("text")) {
        field.value = taken = model.get("text");
        trouble = "";
      }
      set(field, { "aria-invalid": trouble ? "true" : null });
    });
    function take() {
      trouble = understood(field.value).trouble ?? "";
      if (!trouble && field.value.trim() !== taken) model.set({ text: (taken = field.value.trim()), step: 0 });
      else model.refresh();
    }
    const finish = () => {
      take();
      if (!trouble) model.set({ step: LONGEST });
    };
    const submit = (event) => {
      event.preventDefault();
      finish();
    };

    const place = h("div", { class: "mha-transformer-load" });
    const whole = button(model, "Translate", finish);
    place.append(
      loader(model, {
        label: "Load the model (0.5 MB)",
        pieces: [...Array(PIECES).keys()],
        ready: (pieces, held) => {
          net = network(new Uint8Array(pieces.flatMap((piece) => [...piece])));
          const size = sum(Object.values(net.weights).map((weights) => weights.length));
          const words = `The model is loaded: ${size.toLocaleString("en")} weights. All that is shown is computed here.`;
          place.append(h("p", { class: "mha-note" }, words));
          model.refresh();
          if (held) whole.focus({ preventScroll: true });
        },
      }),
    );

    const alignment = h("div", {});
    let table;
    let drawn;
    const candidates = grid({ caption: "", rows: Array(SHOWN).fill(""), columns: ["probability"], corner: "candidate" });
    const texts = grid({
      caption: "The best texts",
      rows: Array.from({ length: ROOM.texts }, (_, i) => `${i + 1}`),
      columns: ["log-probability", "÷ length\u200b^alpha", "text"],
    });
    texts.element.classList.add("mha-transformer-texts");
    // Where they are wider than the page they scroll, by the keyboard too.
    const penalty = slider(model, { name: "alpha", label: "alpha", min: 0, max: 1, step: 0.1, show: (x) => number(x, 1) });

    root.append(
      h("p", { class: "mha-title" }, "The translator at work: number words from English into German"),
      h(
        "p",
        { class: "mha-how" },
        "Type a number, in digits or in English words. Translate it at once, or token by token. ",
        "Until the model is loaded, 342,087 is the one example.",
      ),
      place,
      h(
        "form",
        { class: "mha-controls", onsubmit: submit },
        h("label", { class: "mha-menu" }, h("span", {}, "number"), field),
        whole,
      ),
      h("div", { class: "mha-transformer-say" }, sentence(model, () => trouble || now().refused || said(now(), step(), model.get("guess")))),
      h(
        "div",
        { class: "mha-row" },
        h(
          "div",
          { class: "mha-transformer-side" },
          h(
            "div",
            { class: "mha-steps", role: "group", "aria-label": "Token by token" },
            button(model, "To the start", () => go(0), () => stuck(0)),
            button(model, "Back", () => go(step() - 1), () => stuck(0)),
            button(model, "Next token", () => go(step() + 1), () => stuck(now().last)),
          ),
          h("div", { class: "mha-controls" }, toggle(model, { name: "guess", label: "let me guess first" })),
          candidates.element,
        ),
        h(
          "div",
          { class: "mha-transformer-map" },
          h(
            "div",
            { class: "mha-controls" },
            menu(model, {
              name: "attention",
              label: "cross-attention of",
              options: [
                ["L1", "the last layer, mean of 4 heads"],
                ["L0", "the first layer, mean of 4 heads"],
                ...[1, 0].flatMap((layer) => [0, 1, 2, 3].map((head) => [`L${layer}H${head}`, `head L${layer}H${head}`])),
              ],
            }),
          ),
          h("p", { class: "mha-note" }, "A row for each token that is chosen (query), a column for each word that is read (key)."),
          alignment,
        ),
      ),
      h(
        "div",
        { class: "mha-controls mha-transformer-beams" },
        choice(model, { name: "beams", label: "beams:", options: [[1, "1 (greedy)"], [2, "2"], [3, "3"], [4, "4"]] }),
        h("div", { style: "min-height: 1.75rem" }, penalty),
      ),
      h("p", { class: "mha-note" }, "“…” goes on. With more beams than one, texts that have ended stay in the list."),
      texts.element,
    );

    const seen = ({ parentElement: row }, on) => row.classList.toggle("mha-transformer-off", !on);
    model.bind(() => {
      const { words, rows: needed, at } = now();
      const shown = at?.(step());
      const secret = hidden(shown, model.get("guess"));
      const rows = Math.max(ROOM.rows, needed);
      if (drawn !== `${words} ${rows}`) {
        drawn = `${words} ${rows}`;
        table = grid({ caption: "Cross-attention", rows: Array(rows).fill(""), columns: words });
        alignment.replaceChildren(table.element);
      }
      const written = shown?.texts[0].tokens ?? [];
      const map = (shown?.map ?? []).map((row, i, all) => (secret && i === all.length - 1 ? row.map(() => "") : row));
      table.labels.forEach((label, i) => {
        label.textContent = written[i] ?? "next: ?";
        seen(label, i < map.length);
      });
      table.fill(map, (weight) => (weight === "" ? {} : { ...shade(weight), text: number(weight).replace(/^0/, "") }));
      candidates.element.querySelector("caption").textContent = shown ? `Candidates for token ${map.length}` : "Candidates";
      candidates.labels.forEach((label, i) => {
        label.textContent = (secret ? null : shown)?.candidates[i][0] ?? "";
      });
      const chances = secret || !shown ? Array(SHOWN).fill([""]) : shown.candidates.map(([, chance]) => [chance]);
      candidates.fill(chances, (value) =>
        value !== "" ? { text: number(value, 3), ...shade(value) } : {},
      );
      const [beams, alpha] = [model.get("beams"), model.get("alpha")];
      const how = beams === 1 ? "1 beam" : `${beams} beams, alpha ${number(alpha, 1)}`;
      texts.element.querySelector("caption").textContent = `The best texts: ${how}`;
      const listed = shown?.texts.slice(0, ROOM.texts) ?? [];
      texts.labels.forEach((label, i) => seen(label, i < listed.length));
      texts.fill(
        listed.map(({ tokens, sum, rank, going }) => [sum, rank, `${tokens.join(" ")}${going ? " …" : ""}`]),
        (value) => (typeof value === "number" ? { text: number(value, 3) } : {}),
      );
      penalty.style.display = beams === 1 ? "none" : "";
    });
  },
};

/** Whether what comes next is held back: until it is written, if the reader wants to guess. */
const hidden = (shown, guess) => guess && Boolean(shown?.texts[0].going);

/** Say in words what is shown. */
function said({ words, value, last, at }, step, guess) {
  if (!at) return `Load the model to see what it makes of “${words.join(" ")}”.`;
  const shown = at(step);
  const { texts: [best], map, candidates: [[candidate, chance]] } = shown;
  if (step === last) return verdict(best, value);
  if (!best.going) return `“${best.tokens.join(" ")}” has ended; another text that is followed may still come out better.`;
  const written = `${["Nothing is", "1 token is"][step] ?? `${step} tokens are`} written.`;
  if (hidden(shown, guess)) return `${written} Which token comes next, and which word does it look at most? “Next token” shows it.`;
  const weights = map.at(-1);
  const place = weights.indexOf(Math.max(...weights));
  return (
    `${written} For the next it looks most at ` +
    `“${words[place]}”, with a weight of ${number(weights[place])}, and finds “${candidate}” best, with a probability of ${number(chance, 3)}.`
  );
}
