"""A page in headless Chromium, driven through the DevTools protocol over two pipes."""
import base64
import json
import os
import pathlib
import subprocess
import tempfile


class Page:
    """A page that is open. Use it in a `with` statement: it ends the browser."""

    def __init__(self, chromium: str, address: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()

        def as_3_and_4() -> None:  # where Chromium reads and writes
            low, high = os.dup(to_browser), os.dup(from_browser)
            os.dup2(low, 3), os.dup2(high, 4)

        # Without the sandbox it also runs as root, in a container; the page is our own.
        self._browser = subprocess.Popen(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=as_3_and_4, close_fds=False, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_browser), os.close(from_browser)
        self._number, self._rest, self._session = 0, b"", None
        target = self._call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in target if t["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page,
                                   flatten=True)["sessionId"]
        self.errors = []  #: What the page threw and did not catch.
        self._call("Page.enable")
        self._call("Runtime.enable")
        self._call("Page.navigate", url=address)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._browser.kill()
        self._browser.wait()
        os.close(self._to), os.close(self._from)
        self._profile.cleanup()

    def _call(self, method: str, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(answer["params"]["exceptionDetails"])
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self):
        while b"\0" not in self._rest:
            read = os.read(self._from, 1 << 16)
            if not read:
                raise RuntimeError(f"Chromium has ended: {self._browser.wait()}")
            self._rest += read
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def run(self, script: str):
        """The value of an expression in the page; promises are awaited."""
        result = self._call("Runtime.evaluate", expression=script, awaitPromise=True,
                            returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script[:80]}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """Presses a key, such as "Tab", "ArrowRight" or "a"."""
        code = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
                "ArrowDown": 40}.get(key, ord(key[0].upper()))
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                       windowsVirtualKeyCode=code, text=text if kind == "keyDown" else "")

    def resize(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                   deviceScaleFactor=1, mobile=False)

    def color_scheme(self, scheme: str) -> None:
        """What the page learns of the reader's wish: "light" or "dark"."""
        self._call("Emulation.setEmulatedMedia",
                   features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, file: pathlib.Path) -> None:
        """A picture of the whole page."""
        picture = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(picture["data"]))
