// Opens pages of the site in frames of several widths, uses the search, and posts what it sees.
const wait = milliseconds => new Promise(done => setTimeout(done, milliseconds));
async function until(condition) {
  for (let i = 0; i < 200 && !condition(); i++) await wait(25);
}
async function open(frame, page, width) {
  frame.style.width = `${width}px`;
  await new Promise(done => { frame.onload = done; frame.src = page; });
  const seen = frame.contentDocument;
  const pictures = [...seen.images].filter(each => each.complete && !each.naturalWidth).map(each => each.src);
  const wide = seen.documentElement.scrollWidth - seen.documentElement.clientWidth;
  return { page, width, wide, pictures, errors: frame.contentWindow.errors, title: seen.title };
}
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
  await fetch("/seen", { method: "POST", body: JSON.stringify({ pages: seen, searches }) });
}
