// What a hit of the search is worth, and what it is called. Sphinx copies this into the search page.

// A page that was opened as a file may not read the other ones, so there are no lines of context to be shown.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

var Scorer = {
  // A word of the glossary or a question, whatever name it was found by, is one hit, with its meaning. It comes first if the
  // name is what was typed; a name that only contains it (50 to 99 points) comes after the titles of pages.
  score: (result) => {
    const [page, , anchor, , score] = result;
    const entry = HITS[page]?.find(([, anchors]) => anchors.includes(anchor.slice(1))); // search_hits.py writes them
    if (!entry) return score;
    const [name, [first], meaning] = entry;
    result[1] = `${Search._index.titles[Search._index.docnames.indexOf(page)]} > ${name}`;
    result[2] = `#${first}`;
    result[3] = meaning;
    return score >= 50 && score < 100 ? score / 10 : score;
  },

  // Sphinx's own numbers.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
