"""A headless Chromium, where there is one; where there is none, a reason that names the remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

expect.set_options(timeout=120_000)  # kernels may have to be compiled before something happens
NONE = "no Chromium: `make test` installs one where it can; or apt-get install chromium"


def executable(playwright: Playwright) -> str | None:
    """Debian's Chromium, else Playwright's own."""
    own = playwright.chromium.executable_path
    return shutil.which("chromium") or (own if os.path.exists(own) else None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = executable(playwright)
        if path is None:
            pytest.skip(NONE)
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own, on which no script failed and nothing was blocked when the test ends."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "console", lambda said: problems.append(said.text) if _is_blocked(said.text) else None
    )
    yield opened
    context.close()
    assert problems == []


def _is_blocked(text: str) -> bool:
    return "Content Security Policy" in text or "TrustedHTML" in text
