"""Chromium for tests, and a page in it with all that it said and asked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import BROWSERS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The first browser on the PATH, without a window."""
    from playwright.sync_api import sync_playwright

    found = next(path for name in BROWSERS if (path := shutil.which(name)))
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=list(FLAGS))
        yield started
        started.close()


class Opened:
    """A page that has loaded, with everything that it said, asked for, or put in the reader's way."""

    def __init__(self, browser: Browser, file: Path, width: int = 1280, **options: Any) -> None:
        self.events: list[str] = []
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page: Page = context.new_page()
        self.page.on("console", lambda message: self.events.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.events.append(f"error: {error}"))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.events.append(f"request: {request.url}"))
        self.page.goto(file.as_uri())
        self.page.wait_for_timeout(150)
        assert self.events.pop(0) == f"request: {file.as_uri()}"

    def _dismiss(self, dialog: Dialog) -> None:
        self.events.append("dialog")
        dialog.dismiss()

    def close(self) -> None:
        self.page.context.close()
