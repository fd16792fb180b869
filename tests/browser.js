// Opens pages in a frame and notes what is wrong with them, for the probe of a test.
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
