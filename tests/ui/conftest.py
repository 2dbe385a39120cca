"""One browser for all tests of the page."""

from collections.abc import AsyncIterator

import pytest

from tests.ui.browser import Page, chromium


@pytest.fixture(scope="package")
async def browser() -> AsyncIterator[Page]:
    async with chromium() as page:
        yield page


@pytest.fixture
async def page(browser: Page) -> AsyncIterator[Page]:
    await browser.visit("about:blank")
    browser.console.clear()
    browser.requested.clear()
    browser.received_bytes = 0
    await browser.size(1280)
    await browser.scheme("light")
    yield browser
    assert browser.console == []
