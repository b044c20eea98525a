// The Transformer of chapter 8 in plain numbers: its weights, the encoder, the decoder with its cache, and beams.
import { softmax } from "./maths.mjs";

// ---- the file -------------------------------------------------------------------------------------------------------

/** The number that 16 bits stand for (IEEE 754 half precision). */
export function half(bits) {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

/** Read a checkpoint in safetensors' format: a header that says where each tensor lies, then the tensors. */
export function network(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const text = (start, end) => new TextDecoder().decode(bytes.subarray(start, end));
  const begin = 8 + Number(view.getBigUint64(0, true));
  const { __metadata__, about, ...tensors } = JSON.parse(text(8, begin));
  const weights = {};
  for (const [name, { data_offsets: [start, end] }] of Object.entries(tensors)) {
    const number = (_, i) => half(view.getUint16(begin + start + 2 * i, true));
    weights[name.replace("model.", "")] = Float64Array.from({ length: (end - start) / 2 }, number);
  }
  const { settings } = JSON.parse(text(...about.data_offsets.map((offset) => begin + offset)));
  const [width, heads, layers] = ["d_model", "num_heads", "num_layers"].map((name) => settings[`about ${name}`]);
  return { weights, width, heads, layers: [...Array(layers).keys()] };
}

// ---- parts ----------------------------------------------------------------------------------------------------------

const add = (a, b) => a.map((x, i) => x + b[i]);

function dense({ weights }, name, x) {
  const [matrix, bias] = [weights[`${name}.weight`], weights[`${name}.bias`]];
  return Float64Array.from({ length: matrix.length / x.length }, (_, row) => {
    let total = bias ? bias[row] : 0; // the output layer has none
    for (let i = 0, place = row * x.length; i < x.length; i++) total += matrix[place + i] * x[i];
    return total;
  });
}

function normed({ weights }, name, x) {
  const mean = x.reduce((total, number) => total + number) / x.length;
  const variance = x.reduce((total, number) => total + (number - mean) ** 2, 0) / x.length;
  const [scale, shift] = [weights[`${name}.weight`], weights[`${name}.bias`]];
  return x.map((number, i) => ((number - mean) / Math.sqrt(variance + 1e-5)) * scale[i] + shift[i]);
}

const feedForward = (net, name, x) =>
  dense(net, `${name}.2`, dense(net, `${name}.0`, x).map((number) => Math.max(number, 0)));

/** A token's vector and the pattern of its position. */
function embedded({ weights, width }, name, id, position) {
  return weights[`${name}.token.weight`].slice(id * width, (id + 1) * width).map((number, i) => {
    const angle = position * Math.exp((-Math.log(10000) * (i - (i % 2))) / width);
    return number + Math.fround(i % 2 ? Math.cos(angle) : Math.sin(angle)); // the package keeps them in single precision
  });
}

const asked = (net, name, tokens) =>
  ["k_proj", "v_proj"].map((part) => tokens.map((token) => dense(net, `${name}.${part}`, token)));

/** One token asks: the vector that it gets, and the weights of each head. */
function attend(net, name, token, [keys, values]) {
  const query = dense(net, `${name}.q_proj`, token);
  const size = query.length / net.heads;
  const mixed = new Float64Array(query.length);
  const weights = Array.from({ length: net.heads }, (_, head) => {
    const from = head * size;
    const scores = keys.map((key) => {
      let total = 0;
      for (let i = from; i < from + size; i++) total += query[i] * key[i];
      return total / Math.sqrt(size);
    });
    const row = softmax(scores);
    row.forEach((weight, k) => {
      for (let i = from; i < from + size; i++) mixed[i] += weight * values[k][i];
    });
    return row;
  });
  return { output: dense(net, `${name}.out_proj`, mixed), weights };
}

// ---- encoder and decoder --------------------------------------------------------------------------------------------

/** Read a source: the memory, and what each decoder layer's cross-attention makes of it, which is done once. */
export function encode(net, ids) {
  let x = ids.map((id, position) => embedded(net, "source", id, position));
  for (const i of net.layers) {
    const name = `encoder.layers.${i}`;
    const before = x.map((token) => normed(net, `${name}.norm1`, token));
    const kept = asked(net, `${name}.self_attn`, before);
    x = x.map((token, place) => add(token, attend(net, `${name}.self_attn`, before[place], kept).output));
    x = x.map((token) => add(token, feedForward(net, `${name}.ffn`, normed(net, `${name}.norm2`, token))));
  }
  const memory = x.map((token) => normed(net, "encoder.norm", token));
  return { memory, kept: net.layers.map((i) => asked(net, `decoder.layers.${i}.cross_attn`, memory)) };
}

/**
 * Add a token to a text; `before` is what was returned for the text without it, null for the mark of the beginning.
 *
 * Returns the scores (`logits`) of the next token; `maps`, one entry a token: the weights of its cross-attention by layer
 * and head; and `own`, the keys and values of each layer, so that none is computed twice.
 */
export function decode(net, source, before, token) {
  let x = embedded(net, "target", token, before ? before.maps.length : 0);
  const own = [];
  const map = [];
  for (const i of net.layers) {
    const name = `decoder.layers.${i}`;
    const asking = normed(net, `${name}.norm1`, x);
    const [key, value] = asked(net, `${name}.self_attn`, [asking]);
    own.push(before ? [[...before.own[i][0], ...key], [...before.own[i][1], ...value]] : [key, value]);
    x = add(x, attend(net, `${name}.self_attn`, asking, own[i]).output);
    const { output, weights } = attend(net, `${name}.cross_attn`, normed(net, `${name}.norm2`, x), source.kept[i]);
    map.push(weights);
    x = add(x, output);
    x = add(x, feedForward(net, `${name}.ffn`, normed(net, `${name}.norm3`, x)));
  }
  const logits = [...dense(net, "output.table", normed(net, "decoder.norm", x))];
  return { logits, own, maps: [...(before?.maps ?? []), map] };
}

// ---- writing --------------------------------------------------------------------------------------------------------

export function logSoftmax(scores) {
  const largest = Math.max(...scores);
  const total = Math.log(scores.reduce((all, score) => all + Math.exp(score - largest), 0)) + largest;
  return scores.map((score) => score - total);
}

// Among equals the first one stays first.
const best = (texts, by, count) => texts.toSorted((a, b) => b[by] - a[by]).slice(0, count);

/**
 * Follow several texts at once, as `beam_search` of the package does; one with `alpha` 0 is greedy decoding.
 *
 * `next(before, token)` gives `{logits}` after one more token, where `before` is what it gave for the text without it,
 * null at the beginning. Returns one stage for each number of tokens written, from 0: the texts `followed` and those
 * `ended`, best first. A text has its `tokens`, their log-probability `sum`, that divided by length^alpha (`rank`), and as
 * `state` what `next` gave last.
 */
export function beamSearch(next, begin, { beams, longest, end, alpha = 0 }) {
  let followed = [{ tokens: [], sum: 0, rank: 0, state: next(null, begin) }];
  let ended = [];
  const stages = [{ followed, ended }];
  for (let length = 1; ; length++) {
    const longer = followed.flatMap(({ tokens, sum, state }) =>
      logSoftmax(state.logits).map((chance, token) => ({
        tokens: [...tokens, token], sum: sum + chance, rank: (sum + chance) / length ** alpha, state,
      })),
    );
    // Twice as many as there are beams: even if one of each beam ends, enough are left to go on with.
    const kept = best(longer, "sum", 2 * beams);
    const ends = (text) => text.tokens.at(-1) === end || length === longest;
    // An end that does not make it into the beam itself is none.
    ended = best([...ended, ...kept.slice(0, beams).filter(ends)], "rank", beams);
    followed = kept.filter((text) => !ends(text)).slice(0, beams);
    // A sum can only fall, and is divided by longest^alpha at most.
    const beaten = ended.length === beams && ended.at(-1).rank >= followed[0]?.sum / longest ** alpha;
    followed = beaten ? [] : followed.map((text) => ({ ...text, state: next(text.state, text.tokens.at(-1)) }));
    stages.push({ followed, ended });
    if (!followed.length) return stages;
  }
}
