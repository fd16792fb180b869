// Opens pages of the site at several widths, uses the search, and returns what it sees.
async function search(frame, words) {
  const seen = frame.contentDocument, box = seen.querySelector("input.md-search__input");
  seen.getElementById("__search").click();
  box.focus();
  box.value = words;
  box.dispatchEvent(new frame.contentWindow.KeyboardEvent("keyup", { bubbles: true }));
  const results = () => [...seen.querySelectorAll("a.md-search-result__link")];
  await until(() => results().length);
  const { width, height } = results()[0]?.getBoundingClientRect() ?? { width: 0, height: 0 };
  return { found: results().map(each => each.href), width, height };
}
async function probe({ pages, widths, words }) {
  const frame = document.body.appendChild(document.createElement("iframe")), seen = [], searches = [];
  frame.style.height = "900px";
  for (const width of widths) {
    for (const page of pages) seen.push(await open(frame, page, width));
    await open(frame, pages[0], width);
    searches.push({ ...await search(frame, words), errors: frame.contentWindow.errors });
  }
  return { pages: seen, searches };
}
