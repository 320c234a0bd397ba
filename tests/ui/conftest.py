"""Fixtures of the console's tests, which are left out where Playwright is not installed."""

from __future__ import annotations

import importlib.util

collect_ignore_glob: list[str] = []

if importlib.util.find_spec("playwright") is None:
    collect_ignore_glob += [f"test_console_{name}.py" for name in ("live", "pages", "requests", "shell")]
    collect_ignore_glob += ["test_console_gateway*.py"]
else:
    from tests.ui.console_pages import browser, fake, open_page
    from tests.ui.gateway_pages import gateway, login, open_console

    __all__ = ["browser", "fake", "gateway", "login", "open_console", "open_page"]
