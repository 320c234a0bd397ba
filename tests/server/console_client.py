"""A browser's calls of the console, over raw HTTP: its cookie, the headers of browsers, the CSRF value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.kit.raw_client import Answer, call

TOKEN = "operator-token"
BEARER = {"authorization": f"Bearer {TOKEN}"}
PAGE = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}

DEMO = (
    '[providers.demo]\nprotocol = "demo"\npace = 0\n[providers.demo.models.demo-1]\n'
    '[routing]\ndefault = ["demo.demo-1"]\n'
)
CLIENTS = (
    '[clients.reader]\nkey = "k-reader"\nrole = "viewer"\n'
    '[clients.steerer]\nkey = "k-steerer"\nrole = "operator"\n'
    '[clients.agent]\nkey = "k-agent"\n'
)


def config(*, console: str = "", server: str = "", more: str = "") -> str:
    return (
        f'[server]\nport = 0\nid = "main"\ndrain_seconds = 1\nadmin_token = "{TOKEN}"\n{server}\n'
        f"[console]\n{console}\n{DEMO}{more}"
    )


@dataclass
class ConsoleClient:
    """The page in a browser: `cookie` and `csrf` are those of its login."""

    port: int
    cookie: str = ""
    csrf: str = ""
    set_cookie: str = ""
    more: dict[str, str] = field(default_factory=dict)

    async def log_in(self, **by: str) -> Answer:
        answer = await call(self.port, "/admin/login", by, headers={**PAGE, **self.more})
        self.set_cookie = answer.headers.get("set-cookie", "")
        self.cookie = self.set_cookie.partition(";")[0]
        if answer.status == 204:
            self.csrf = (await self.get("/admin/me")).json["csrf"]
        return answer

    @property
    def headers(self) -> dict[str, str]:
        return {**PAGE, "cookie": self.cookie, **self.more}

    async def get(self, path: str, **headers: str) -> Answer:
        return await call(self.port, path, method="GET", headers={**self.headers, **headers})

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        fields = {**self.headers, "x-routecodex-csrf": self.csrf, **headers}
        return await call(self.port, path, {} if body is None else body, headers=fields)


async def logged_in(port: int, **by: str) -> ConsoleClient:
    """Return a page that is logged in, by default with the admin token."""
    client = ConsoleClient(port)
    answer = await client.log_in(**(by or {"token": TOKEN}))
    assert answer.status == 204, answer.body
    return client


def code_of(answer: Answer) -> tuple[int, str]:
    """Return the status and the code of an error, which stands in both places."""
    value = answer.json
    assert value["code"] == value["error"]["code"]
    assert value["error"]["message"]
    return answer.status, value["code"]
