// Opens pages of a board at several widths, uses the ranges of a history and clicks a point.
const shapes = seen => [...seen.querySelectorAll("[data-chart] .panels svg")];
const marks = seen => shapes(seen).map(svg => svg.querySelectorAll("path.mark").length);
const isCut = (text, svg) => text.left < svg.left - 1 || text.right > svg.right + 1;
function look(seen) {
  const texts = [...seen.querySelectorAll(".panels svg text")];
  const cut = texts.filter(each => isCut(each.getBoundingClientRect(), each.ownerSVGElement.getBoundingClientRect()));
  const drawn = [...seen.querySelectorAll("svg [d], svg [transform]")];
  const broken = drawn.filter(each => /NaN|Infinity|undefined/.test(each.outerHTML)).length;
  return { cut: cut.map(each => each.textContent), broken };
}
function press(seen) {
  const ranges = {};
  for (const button of seen.querySelectorAll("[data-since]")) { button.click(); ranges[button.textContent] = marks(seen); }
  const dates = [...shapes(seen)[0].querySelectorAll("text[text-anchor=middle]:not([transform])")];
  return { ranges, dates: dates.map(each => each.textContent) };
}
async function click(frame) {
  const seen = frame.contentDocument, svg = shapes(seen)[0], mark = [...svg.querySelectorAll("path.mark")].at(-1);
  mark.scrollIntoView();
  const { left, top, width, height } = mark.getBoundingClientRect();
  const at = { clientX: left + width / 2, clientY: top + height / 2, bubbles: true };
  svg.dispatchEvent(new frame.contentWindow.PointerEvent("pointermove", at));
  const tip = seen.getElementById("tip").textContent;
  svg.dispatchEvent(new frame.contentWindow.MouseEvent("click", at));
  await until(() => frame.contentWindow.location.pathname.startsWith("/runs/") && frame.contentDocument.readyState === "complete");
  const record = frame.contentDocument.querySelector(":target");
  const links = [...frame.contentDocument.querySelectorAll("header a")].map(each => each.href);
  return { tip, links, isOpen: record?.closest("details").open, text: record?.textContent, errors: frame.contentWindow.errors };
}
async function probe({ pages, widths }) {
  const frame = document.body.appendChild(document.createElement("iframe")), seen = [];
  frame.style.height = "900px";
  for (const width of widths)
    for (const page of pages) {
      const found = { ...await open(frame, page, width), ...look(frame.contentDocument) };
      if (page.startsWith("histories/")) Object.assign(found, press(frame.contentDocument), { clicked: await click(frame) });
      seen.push(found);
    }
  return seen;
}
