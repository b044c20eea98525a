// What a hit of the search is worth, and what it is called. Sphinx copies this into the search page.

// A page that was opened as a file may not read the other ones, so there are no lines of context to be shown.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

var Scorer = {
  // Sphinx leaves a word of the glossary, which it ranks first, with the page's title alone.
  score: (result) => {
    const [page, title, anchor, , score] = result;
    const { docnames, indexentries } = Search._index;
    const found = Object.entries(indexentries).find(([, places]) =>
      places.some(([file, id]) => docnames[file] === page && `#${id}` === anchor),
    );
    if (found && !title.includes(" > ")) result[1] = `${title} > ${new Option(found[0]).innerHTML}`;
    return score;
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
