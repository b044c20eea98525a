// Numbers in English and in German words, as mha_course.tasks.number_words says them, and the words as ids.
import { sum } from "./maths.mjs";

const SMALL = {
  en: (
    "zero one two three four five six seven eight nine " +
    "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
  ).split(" "),
  de: (
    "null eins zwei drei vier fünf sechs sieben acht neun " +
    "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"
  ).split(" "),
};
const TENS = {
  en: "twenty thirty forty fifty sixty seventy eighty ninety".split(" "),
  de: "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split(" "),
};
export const LARGEST = 999_999_999;
export const MOST_WORDS = 20;
export const [PAD, BEGIN, END] = [0, 1, 2];

const parts = (number, size) => [Math.floor(number / size), number % size];

/** Say a number in English words. Past 999,999 the rule goes on as it is, to a thousand thousands. */
export const english = (number) => (number ? englishPart(number) : [SMALL.en[0]]);

function englishPart(number) {
  for (const [size, word] of [[1000, "thousand"], [100, "hundred"]]) {
    const [count, rest] = parts(number, size);
    if (count) return [...englishPart(count), word, ...englishPart(rest)];
  }
  if (number < 20) return number ? [SMALL.en[number]] : [];
  const [tens, unit] = parts(number, 10);
  return [TENS.en[tens - 2], ...englishPart(unit)];
}

/** Say a number in German words, or parts of words. */
export const german = (number) => (number ? germanPart(number, "eins") : [SMALL.de[0]]);

// A 1 is "eins" at the very end alone; what is counted or joined by "und" takes "ein".
function germanPart(number, one) {
  for (const [size, word] of [[1000, "tausend"], [100, "hundert"]]) {
    const [count, rest] = parts(number, size);
    if (count) return [...germanPart(count, "ein"), word, ...germanPart(rest, one)];
  }
  if (number < 20) return number === 1 ? [one] : number ? [SMALL.de[number]] : [];
  const [tens, unit] = parts(number, 10);
  return [...(unit ? [...germanPart(unit, "ein"), "und"] : []), TENS.de[tens - 2]];
}

/** The number that English words say, or null if they don't say one as `english` does. */
export function numberOf(words) {
  const number = worth(words);
  return english(number).join() === words.join() ? number : null;
}

function worth(words) {
  for (const [word, size] of [["thousand", 1000], ["hundred", 100]]) {
    const place = words.lastIndexOf(word);
    if (place >= 0) return worth(words.slice(0, place)) * size + worth(words.slice(place + 1));
  }
  return sum(words.map((word) => (TENS.en.includes(word) ? 20 + 10 * TENS.en.indexOf(word) : SMALL.en.indexOf(word))));
}

/** All words of a language and the ids that stand for them, in the order in which one meets them when counting. */
function vocabulary(say) {
  const counted = [...Array(100).keys(), 100, 200, 1000, 10_000];
  const tokens = ["<pad>", "<begin>", "<end>", ...new Set(counted.flatMap(say))];
  const ids = new Map(tokens.map((token, id) => [token, id]));
  return { tokens, ids };
}
export const SOURCE = vocabulary(english);
export const TARGET = vocabulary(german);

/** Take what a reader has typed, digits or English words: `{words, number}`, or `{trouble}`, which says what is wrong. */
export function understood(text) {
  const typed = text.replace(/[\s,]+/g, " ").trim().toLowerCase();
  const trouble = (what) => ({ trouble: what });
  if (typed === "") return trouble("A number is missing: type one in digits, such as 472, or in English words.");
  if (/^[\d ]+$/.test(typed)) {
    const number = Number(typed.replace(/ /g, ""));
    if (number > LARGEST) return trouble(`Numbers go up to 999,999,999 here, but ${text.trim()} is larger: leave digits out.`);
    return { words: english(number), number };
  }
  if (/^[^a-z]*\d[^a-z]*$/.test(typed)) {
    return trouble(`Numbers must be whole, without dots or signs, but this is “${text.trim()}”: type digits alone, such as 472.`);
  }
  const words = typed.split(/ |\b-\b/);
  const strange = words.find((word) => word.startsWith("<") || !SOURCE.ids.has(word));
  if (strange !== undefined) {
    const known = "The model reads 30 number words and no others";
    return trouble(`${known}, and “${strange}” is none of them: type digits, or words such as “forty two”.`);
  }
  if (words.length > MOST_WORDS) return trouble(`There may be ${MOST_WORDS} words, but these are ${words.length}: leave some out.`);
  return { words, number: numberOf(words) };
}
