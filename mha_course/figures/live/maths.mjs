// The mathematics that figures share: vectors are arrays of numbers, matrices are arrays of rows. Nothing here draws.

/** Sum of a list of numbers. */
export const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

/** Dot product of two vectors of one width. */
export const dot = (a, b) => sum(a.map((x, i) => x * b[i]));

/** Euclidean length of a vector. */
export const norm = (a) => Math.sqrt(dot(a, a));

/** Rows become columns. */
export const transpose = (matrix) => matrix[0].map((_, column) => matrix.map((row) => row[column]));

/** Matrix product (n, k) times (k, m). */
export function matmul(a, b) {
  const columns = transpose(b);
  return a.map((row) => columns.map((column) => dot(row, column)));
}

/**
 * Weights that sum to 1, of scores. Where `mayAttend` is false the weight is 0; if it is false everywhere, all are 0.
 */
export function softmax(scores, mayAttend = scores.map(() => true)) {
  const largest = Math.max(...scores.filter((_, i) => mayAttend[i]));
  const raised = scores.map((score, i) => (mayAttend[i] ? Math.exp(score - largest) : 0));
  const total = sum(raised);
  return raised.map((number) => (total > 0 ? number / total : 0));
}

/** Weighted sum of vectors. */
export const mix = (weights, vectors) =>
  vectors[0].map((_, i) => sum(weights.map((weight, j) => weight * vectors[j][i])));

/** Effective number of entries that answer: e to the entropy of the weights. */
export const spread = (weights) => Math.exp(-sum(weights.map((w) => (w > 0 ? w * Math.log(w) : 0))));

/**
 * Pseudo-random numbers, uniform in [0, 1), the same for the same seed everywhere (mulberry32; not for secrets).
 */
export function uniform(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 4294967296;
  };
}

/** Pseudo-random numbers of the standard normal distribution, the same for the same seed (Box and Muller's way). */
export function normal(seed) {
  const draw = uniform(seed);
  return () => Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());
}
