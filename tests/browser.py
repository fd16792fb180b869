"""Sites in a headless browser, with a probe that reports what it sees."""

from __future__ import annotations

import functools
import http.server
import json
import posixpath
import queue
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlsplit

from tests.support import CHROMIUM

WIDTHS = (1280, 390)


def broken_links(folder, pages):
    """Return relative links that lead to no file, or to no element of it."""
    ids = {name: {each["id"] for _, each in page.elements if "id" in each} for name, page in pages.items()}
    broken = []
    for name, page in pages.items():
        for target in {*page.links, *page.loaded}:
            address = urlsplit(target or "")
            if address.scheme or name == "404.html":  # a server shows it at any address
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), address.path)) if address.path else name
            is_there = (folder / path).is_file() and (not address.fragment or address.fragment in ids.get(path, ()))
            broken += [] if is_there else [f"{name}: {target}"]
    return broken


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serve the site with a probe; put what the probe posts into a queue."""

    def __init__(self, *arguments, page, seen, **keywords):
        self.page, self.seen = page, seen
        super().__init__(*arguments, **keywords)

    def do_GET(self):
        if self.path == "/probe":
            return self._say(self.page)
        if (file := Path(self.translate_path(self.path))).suffix == ".html" and file.is_file():
            return self._say(file.read_text().replace("<head>", f"<head><script>{WATCH}</script>", 1))
        return super().do_GET()

    def do_POST(self):
        self.seen.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._say("")

    def _say(self, text):
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


WATCH = """
window.errors = [];
const note = (...all) => { errors.push(all.map(each => String(each?.stack ?? each)).join(" ")); };
console.error = console.warn = note;
addEventListener("error", event => note(event.message ?? event.target.src ?? event.target.href), true);
addEventListener("securitypolicyviolation", event => note(event.violatedDirective));
addEventListener("unhandledrejection", event => note(event.reason));
"""


def look(site, tmp_path, probe, todo):
    """Serve a folder, and return what a probe sees in a browser.

    Args:
        site: Folder.
        tmp_path: Folder for the browser's profile.
        probe: File with a function ``probe``, which may use `browser.js`.
        todo: Its argument.
    """
    seen = queue.Queue()
    scripts = Path(__file__).with_suffix(".js").read_text() + probe.read_text()
    post = 'found => fetch("/seen", { method: "POST", body: JSON.stringify(found) })'
    failed = "error => ({ failed: String(error.stack) })"
    page = f"<body><script>{scripts}probe({json.dumps(todo)}).catch({failed}).then({post});</script>"
    handler = functools.partial(Handler, page=page, seen=seen, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
        words = [str(CHROMIUM), *options, "--remote-debugging-port=0", f"http://127.0.0.1:{server.server_port}/probe"]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
            try:
                found = seen.get(timeout=120)
            finally:
                browser.terminate()
                server.shutdown()
    assert "failed" not in found, found["failed"]
    return found
