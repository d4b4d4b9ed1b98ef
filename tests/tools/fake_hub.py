"""A small Hugging Face hub on this machine, as far as huggingface_hub asks it for models."""

import contextlib
import hashlib
import http.server
import json
import threading
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(http.server.ThreadingHTTPServer):
    """models: name -> folder with its files. gated: names that need the token "secret".

    asked: (method, path) of every request."""

    daemon_threads = True

    def __init__(self, models, gated=()):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models, self.gated, self.asked = models, gated, []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def running(models, gated=()):
    with FakeHub(models, gated) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):  # pylint: disable=invalid-name
        self._answer()

    def do_HEAD(self):  # pylint: disable=invalid-name
        self._answer()

    def log_message(self, *unused):  # pylint: disable=arguments-differ
        pass

    def _answer(self):
        path = self.path.partition("?")[0]
        self.server.asked.append((self.command, path))
        parts = path.strip("/").split("/")
        of_api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if of_api else parts[:2])
        rest = parts[4:] if of_api else parts[2:]
        if name not in self.server.models:
            return self._refuse(401, "RepoNotFound")  # as to those who are not logged in
        if name in self.server.gated and self.headers.get("Authorization") != "Bearer secret":
            return self._refuse(401, "GatedRepo")
        if len(rest) < 2 or rest[1] not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        folder = Path(self.server.models[name])
        files = sorted(it for it in folder.rglob("*") if it.is_file())
        if rest[0] == "revision":
            return self._reply(json.dumps({
                "id": name, "modelId": name, "sha": COMMIT, "private": False, "tags": [],
                "siblings": [{"rfilename": str(it.relative_to(folder))} for it in files]}).encode())
        if rest[0] == "tree":
            return self._reply(json.dumps([
                {"type": "file", "path": str(it.relative_to(folder)), "size": it.stat().st_size,
                 "oid": hashlib.sha1(it.read_bytes()).hexdigest()} for it in files]).encode())
        file = folder / "/".join(rest[2:])
        if not file.is_file():
            return self._refuse(404, "EntryNotFound")
        content = file.read_bytes()
        return self._reply(content, etag=hashlib.sha1(content).hexdigest())

    def _reply(self, content, etag=None):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        if etag:
            self.send_header("ETag", f'"{etag}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
