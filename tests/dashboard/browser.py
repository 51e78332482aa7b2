"""A headless Chromium, driven over a pipe by the DevTools protocol: real clicks, real keys, screenshots.

Over a pipe there is no port that anybody else could use, and no driver to install beside the browser. It is started
once for many tests, as that takes longer than most of them; each has a browser context of its own, which shares no
storage, cache or permission with another.
"""

import asyncio
import base64
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.patience import PATIENCE_S

OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--mute-audio",
    # Root may not use the sandbox, and the page that is shown is our own.
    "--no-sandbox",
)

KEYS = {
    "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "Enter": 13, "Escape": 27, "Tab": 9,
    "Home": 36, "End": 35, "PageDown": 34, "PageUp": 33, " ": 32,
}  # fmt: skip


def program() -> str | None:
    """The browser of the system, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class BrowserFailed(Exception):
    """It refused a command, or a script in the page failed."""


@dataclass
class Chromium:
    """A browser's process, and the pipes to it."""

    commands: int
    answers: int
    rest: bytes = b""
    """The beginning of a message that has not come as a whole."""
    command_count: int = 0


class Browser:
    """One page, in a context of its own; used on one event loop."""

    def __init__(self, chromium: Chromium) -> None:
        self.errors: list[str] = []
        """What the page complained of: exceptions, refused resources, violated policies."""
        self._chromium = chromium
        self._answers: dict[int, asyncio.Future[dict[str, object]]] = {}
        self._session: str | None = None

    # -- the protocol

    def take(self) -> None:
        """Called when there is something to read."""
        found = os.read(self._chromium.answers, 1 << 20)
        if not found:
            asyncio.get_running_loop().remove_reader(self._chromium.answers)
            for waiting in self._answers.values():
                waiting.set_exception(BrowserFailed("the browser has gone"))
            return
        *messages, self._chromium.rest = (self._chromium.rest + found).split(b"\0")
        for message in map(json.loads, messages):
            answer = self._answers.pop(message.get("id"), None)
            if answer is not None and not answer.done():
                answer.set_result(message)
            # What former pages still had to say is not ours.
            if self._session is not None and message.get("sessionId") == self._session:
                self._note(message.get("method"), message.get("params", {}))

    async def call(self, method: str, **parameters: object) -> dict[str, object]:
        """Carry out one command; what it returned."""
        self._chromium.command_count += 1
        number = self._chromium.command_count
        command: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        os.write(self._chromium.commands, json.dumps(command).encode() + b"\0")
        async with asyncio.timeout(PATIENCE_S):
            told = await answer
        if "error" in told:
            raise BrowserFailed(f"{method}: {told['error']}")
        return told["result"]  # type: ignore[return-value]

    def _note(self, method: str | None, told: dict) -> None:
        if method == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.errors.append(str([each.get("value") for each in told["args"]]))

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[None]:
        """With a page."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        try:
            target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
            attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            self._session = str(attached["sessionId"])
            for domain in ("Page", "Runtime", "Log", "Accessibility"):
                await self.call(f"{domain}.enable")
            yield
        finally:
            self._session = None
            await self.call("Target.disposeBrowserContext", browserContextId=context)

    # -- the page

    async def open(self, url: str, *, width: int = 1280, height: int = 900, **features: str) -> None:
        """Show an address; `features` are media features such as `prefers_color_scheme`."""
        await self.resize(width, height)
        await self.prefer(**features)
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    async def resize(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def prefer(self, **features: str) -> None:
        wished = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        await self.call("Emulation.setEmulatedMedia", features=wished)

    async def evaluate(self, script: str) -> object:
        """The value of an expression in the page."""
        told = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise BrowserFailed(f"{script}: {told['exceptionDetails']}")
        return told["result"].get("value")  # type: ignore[attr-defined]

    async def until(
        self, script: str, within_s: float = PATIENCE_S, *, reached: Callable[[object], bool] = bool
    ) -> object:
        """Evaluate at every change of what is painted until it is so; what it then was."""
        value = None
        try:
            async with asyncio.timeout(within_s):
                while not reached(value := await self.evaluate(script)):
                    await self.evaluate("new Promise((next) => requestAnimationFrame(() => next(0)))")
        except TimeoutError:
            raise AssertionError(f"not within {within_s} s: {script}, which is {value!r}; {self.errors}") from None
        return value

    async def text(self, selector: str) -> str:
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element, wherever that is on the screen."""
        box = await self.evaluate(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.scrollIntoView({block: 'nearest'}); const box = one.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        x, y = box  # type: ignore[misc]
        await self.hover(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def hover(self, x: float, y: float) -> None:
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def press(self, key: str, times: int = 1) -> None:
        """Press a key, a named one or a character."""
        code = KEYS.get(key, ord(key[0].upper()))
        said = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
        for _ in range(times):
            down = {"key": key, "windowsVirtualKeyCode": code, **({"text": said} if said else {})}
            await self.call("Input.dispatchKeyEvent", type="keyDown" if said else "rawKeyDown", **down)
            await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def type(self, words: str) -> None:
        await self.call("Input.insertText", text=words)

    async def screenshot(self, path: Path) -> None:
        found = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(str(found["data"])))

    async def accessible(self) -> list[tuple[str, str]]:
        """Role and name of all that a screen reader finds."""
        tree = await self.call("Accessibility.getFullAXTree")
        nodes = [node for node in tree["nodes"] if not node["ignored"]]  # type: ignore[attr-defined]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]


@asynccontextmanager
async def browsing(chromium: Chromium) -> AsyncIterator[Browser]:
    """With a page of its own in the browser."""
    browser, loop = Browser(chromium), asyncio.get_running_loop()
    loop.add_reader(chromium.answers, browser.take)
    try:
        async with browser.begun():
            yield browser
    finally:
        loop.remove_reader(chromium.answers)


@contextmanager
def chromium_running(profile: Path) -> Iterator[Chromium]:
    """With a browser, whose profile is kept in this folder."""
    # It is killed, and removes nothing itself; what processes it has started write there for a moment more. Not below
    # the profile: it puts a socket there, and the path of one must be short.
    with TemporaryDirectory(ignore_cleanup_errors=True) as temporary, _chromium(profile, temporary) as started:
        yield started


@contextmanager
def _chromium(profile: Path, temporary: str) -> Iterator[Chromium]:
    path = program()
    if path is None:
        raise FileNotFoundError("chromium")
    commands_out, commands_in = os.pipe()
    answers_out, answers_in = os.pipe()

    def at_its_descriptors() -> None:
        # Where the browser looks for them; by way of higher ones, as they may stand in each other's place.
        commands, answers = os.dup(commands_out), os.dup(answers_in)
        os.dup2(commands, 3)
        os.dup2(answers, 4)

    try:
        with (profile.parent / f"{profile.name}.log").open("wb") as log:
            process = subprocess.Popen(
                [path, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=at_its_descriptors,  # noqa: PLW1509 - no lock is taken in it, which a thread could hold
                close_fds=False,
                env={**os.environ, "HOME": str(profile.parent), "TMPDIR": temporary},
            )  # fmt: skip
    finally:
        os.close(commands_out)
        os.close(answers_in)
    try:
        yield Chromium(commands_in, answers_out)
    finally:
        process.kill()
        process.wait()
        os.close(commands_in)
        os.close(answers_out)
