// The sentence that runs through the book, and the features of its vectors, as mha_course.figures.running_example has them.

export const WORDS = ["The", "cat", "sat", "on", "the", "mat"];
export const FEATURES = ["animal", "place", "action", "little word"];
