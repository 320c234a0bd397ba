"""The console's files over a real socket: addresses, headers, caching, and who gets them."""

from __future__ import annotations

import pytest

from routecodex.console import console_files
from routecodex.server.console_pages import ConsolePages
from tests.kit.gateway import serving
from tests.kit.raw_client import Answer, begin, call
from tests.server.console_client import config

PAGES = (
    *("/ui/", "/ui/requests", "/ui/inspector", "/ui/sessions", "/ui/providers"),
    *("/ui/routing", "/ui/playground", "/ui/keys", "/ui/config"),
)
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json; charset=utf-8",
}


async def get(port: int, path: str, method: str = "GET", **headers: str) -> Answer:
    return await call(
        port, path, method=method, headers={name.replace("_", "-"): v for name, v in headers.items()}
    )


def own_headers(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name in HEADERS}


async def test_every_page_is_the_shell_with_all_headers() -> None:
    shell = console_files()["index.html"].read_bytes()
    async with serving(config()) as running:
        for path in PAGES:
            answer = await get(running.port, f"{path}?range=1h")
            assert (answer.status, answer.body) == (200, shell), path
            assert own_headers(answer) == HEADERS
            assert answer.headers["content-type"] == TYPES["html"]
            assert answer.headers["etag"].startswith('"')


async def test_every_file_of_the_package_is_served_by_its_name() -> None:
    async with serving(config()) as running:
        for name, path in console_files().items():
            if name == "index.html":
                continue
            answer = await get(running.port, f"/ui/assets/{name}")
            assert (answer.status, answer.body) == (200, path.read_bytes()), name
            assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
            assert own_headers(answer) == HEADERS
        texts = [await get(running.port, f"/ui/assets/i18n/{lang}.json") for lang in ("en", "zh-CN")]
    assert [sorted(one.json) for one in texts] == [sorted(texts[0].json)] * 2


async def test_the_address_without_a_slash_is_redirected() -> None:
    async with serving(config()) as running:
        answer = await get(running.port, "/ui")
    assert (answer.status, answer.headers["location"], own_headers(answer)) == (308, "/ui/", HEADERS)


@pytest.mark.parametrize(
    "path",
    [
        *("/ui/nothing", "/ui/requests/", "/ui/requests/1", "/ui/index.html", "/ui/assets/", "/ui/assets"),
        *("/ui/assets/index.html", "/ui/assets/nothing.js", "/ui/assets/__init__.py", "/ui/assets/app"),
        *("/ui/assets/../index.html", "/ui/assets/../../config/load.py", "/ui/assets/%2e%2e/__init__.py"),
        *("/ui/assets/pages", "/ui//requests", "/ui/admin/status"),
    ],
)
async def test_everything_else_is_404(path: str) -> None:
    async with serving(config()) as running:
        answer = await get(running.port, path)
    assert (answer.status, answer.json["code"], own_headers(answer)) == (404, "not_found", HEADERS)


async def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    async with serving(config()) as running:
        whole = await get(running.port, "/ui/assets/app.js")
        tag = whole.headers["etag"]
        for sent in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = await get(running.port, "/ui/assets/app.js", if_none_match=sent)
            assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
            assert own_headers(again) == HEADERS
        other = await get(running.port, "/ui/assets/app.js", if_none_match='"other"')
    assert (other.status, other.body) == (200, whole.body)


async def test_head_has_the_headers_and_no_body() -> None:
    async with serving(config()) as running:
        whole = await get(running.port, "/ui/")
        request = await begin(running.port, "/ui/", method="HEAD", headers={"connection": "close"})
        head = await request.head()
        assert await request.reader.read() == b""
        await request.close()
    assert head.status == 200
    assert head.headers["content-length"] == str(len(whole.body))
    assert head.headers["etag"] == whole.headers["etag"]


async def test_other_methods_are_refused() -> None:
    async with serving(config()) as running:
        answer = await call(running.port, "/ui/", {})
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_a_console_that_is_off_is_404() -> None:
    async with serving(config(console="enabled = false")) as running:
        for path in ("/ui", "/ui/", "/ui/requests", "/ui/assets/app.js"):
            answer = await get(running.port, path)
            assert (answer.status, answer.json["code"]) == (404, "console_off")


async def test_it_needs_no_key_and_no_login() -> None:
    keys = 'client_keys = [{ name = "laptop", key = "k-1" }]'
    async with serving(config(server=keys)) as running:
        assert (await get(running.port, "/ui/")).status == 200


async def test_a_link_on_another_page_opens_it_and_nothing_else_of_another_page_does() -> None:
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    async with serving(config()) as running:
        assert (await get(running.port, "/ui/requests", **link)).status == 200
        framed = {**link, "sec_fetch_dest": "iframe"}
        assert (await get(running.port, "/ui/", **framed)).status == 403
        script = {"sec_fetch_site": "same-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "script"}
        assert (await get(running.port, "/ui/assets/app.js", **script)).status == 403


async def test_a_foreign_host_gets_nothing() -> None:
    async with serving(config()) as running:
        answer = await get(running.port, "/ui/", host="evil.example")
    assert (answer.status, answer.json["code"]) == (403, "host_not_allowed")


def test_the_version_is_the_same_for_the_same_files() -> None:
    assert ConsolePages().version == ConsolePages().version
    assert len(ConsolePages().version) == 32
