// How Sphinx's search ranks what it finds. Sphinx itself gives a page 15 or 5 points, whichever and however many words
// its title has. Here count the share of the typed words that are in the page's title, in one of its headings, and in a
// question of the index page that names the page (ANSWERS: [document, question], which the build writes before this).

function stemsOf(text) {
  const stemmer = new Stemmer();
  const words = splitQuery(text.toLowerCase()).filter((word) => !stopwords.has(word));
  return new Set(words.map((word) => stemmer.stemWord(word)));
}

function shareIn(wanted, text) {
  const found = stemsOf(text);
  return [...wanted].filter((stem) => found.has(stem)).length / Math.max(wanted.size, 1);
}

function rankByDocument(query) {
  const wanted = stemsOf(query);
  const { docnames, titles, alltitles } = Search._index;
  const points = new Map(docnames.map((name, at) => [name, 40 * shareIn(wanted, titles[at])]));
  const headings = new Map();
  for (const [heading, places] of Object.entries(alltitles)) {
    const share = shareIn(wanted, heading);
    for (const [at] of places)
      headings.set(docnames[at], Math.max(share, headings.get(docnames[at]) || 0));
  }
  headings.forEach((share, name) => points.set(name, points.get(name) + 20 * share));
  for (const [name, question] of ANSWERS) {
    const share = Math.min(shareIn(wanted, question), shareIn(stemsOf(question), query));
    if (share > 0.4) points.set(name, points.get(name) + 60 * share);
  }
  return points;
}

let rankedQuery, ranked;

var Scorer = {
  score: ([name, , , , score]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    if (query !== rankedQuery) [rankedQuery, ranked] = [query, rankByDocument(query)];
    return score + (ranked.get(name) || 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
