"""A headless Chromium without a network, driven over pipes by its own protocol; needs no package.

  with Chromium.open() as browser:      # None where no Chromium is installed
      page = browser.page("file:///report.html", width=1280, height=900)
      page.value("document.title"), page.screenshot(path), page.complaints
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time

WAIT_S = 60
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Browser:
    def __init__(self, process, requests, replies):
        self._process = process
        self._requests = requests
        self._replies = replies
        self._buffer = b""
        self._number = 0
        self.events = []

    def _read(self, deadline):
        while b"\0" not in self._buffer:
            if time.monotonic() > deadline:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self._replies, 1 << 16)
            if not part:
                raise EOFError("Chromium has ended")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + WAIT_S
        while True:
            reply = self._read(deadline)
            if reply.get("id") != self._number:
                self.events.append(reply)
                continue
            if "error" in reply:
                raise RuntimeError(f"{method}: {reply['error']}")
            return reply["result"]

    def page(self, url, width=1280, height=900, scale=1, dark=False, offline=True):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, url, (width, height, scale), dark, offline)


class Page:
    """A page that has loaded and reported that it is ready."""

    def __init__(self, browser, session, url, size, dark, offline):
        self._browser = browser
        self._session = session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Network.emulateNetworkConditions", offline=offline, latency=0,
                  downloadThroughput=0 if offline else -1, uploadThroughput=0 if offline else -1)
        self._home = None if offline else url  # the only allowed target of its requests
        width, height, scale = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=scale, mobile=False)
        self.dark(dark)
        self.call("Page.navigate", url=url)
        self.wait_for("document.documentElement?.dataset.ready === '1'")

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def dark(self, on):
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def value(self, expression):
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                          awaitPromise=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(json.dumps(reply["exceptionDetails"]))
        return reply["result"].get("value")

    def wait_for(self, expression):
        deadline = time.monotonic() + WAIT_S
        while not self.value(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not true: {expression}; {self.complaints}")
            time.sleep(0.05)

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    @property
    def complaints(self):
        """Errors and warnings of its console, exceptions, and all requests to the network."""
        self.value("0")  # wait for pending messages
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            method, told = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(told["exceptionDetails"].get("exception", {}).get(
                    "description", str(told)))
            elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                # Reading back a canvas causes that last one, and tests do that.
                if not told["entry"]["text"].startswith("Canvas2D: Multiple readback"):
                    found.append(told["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
                found.append(str(told["args"]))
            elif method == "Page.javascriptDialogOpening":
                found.append(f"dialog: {told['message']}")
            elif method == "Network.requestWillBeSent" and not told["request"]["url"].startswith(
                    ("file:", "data:", "blob:", *([self._home] if self._home else []))):
                found.append(f"asked for {told['request']['url']}")
        return found

    def screenshot(self, path, whole=True):
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))

    def pdf(self, path):
        printed = self.call("Page.printToPDF", printBackground=True, paperWidth=8.27,
                            paperHeight=11.69)
        with open(path, "wb") as file:
            file.write(base64.b64decode(printed["data"]))


class Chromium:
    @staticmethod
    def program():
        return next(filter(None, map(shutil.which, NAMES)), None)

    @staticmethod
    @contextlib.contextmanager
    def open():
        """A browser that ends with the block; None if none is installed."""
        program = Chromium.program()
        if program is None:
            yield None
            return
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        profile = tempfile.mkdtemp(prefix="sluice-chromium-")

        def connect():  # the protocol uses the descriptors 3 and 4
            source, sink = os.dup(to_read), os.dup(from_write)
            os.dup2(source, 3)
            os.dup2(sink, 4)
        process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-background-networking",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=connect)
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(process, to_write, from_read)
        finally:
            os.close(to_write)
            os.close(from_read)
            process.terminate()
            process.wait(WAIT_S)
            # Its own processes end later than the browser, and may still write there.
            deadline = time.monotonic() + 5
            while os.path.exists(profile) and time.monotonic() < deadline:
                shutil.rmtree(profile, ignore_errors=True)
                time.sleep(0.02)
