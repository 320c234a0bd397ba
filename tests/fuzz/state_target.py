"""Files of the store: a damaged one is set aside and reported, and never stops the service."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from routecodex.stores.file import FileStore
from tests.fuzz import mutate
from tests.fuzz.exchanges import exchanging
from tests.fuzz.target import Target
from tests.kit import asking

SESSION = {"x-session-id": "fuzz"}
_TEXTS = ('<**!chat.m**> <**stopMessage:"go on",3**> Hello', "<**#messages**> Hello", "Hello")
_STORED = {"model": "chat.m", "input": "Hello", "store": True}
_NOW = 1_790_000_000_000
_TASK = {
    "taskId": "t1",
    "sessionId": "session:fuzz",
    "dueAtMs": _NOW,
    "createdAtMs": _NOW,
    "updatedAtMs": _NOW,
    "task": "look again",
    "deliveryCount": 0,
    "repeat": {"every": "1 hours"},
}
_WRITTEN: dict[tuple[str, str], dict[str, Any]] = {
    ("server", "routing"): {"disable": ["responses"], "allow": ["chat", "messages"]},
    ("clock", "session:fuzz"): {
        "version": 1,
        "sessionId": "session:fuzz",
        "tasks": [_TASK],
        "updatedAtMs": _NOW,
    },
    ("health", "chat.primary"): {"": {"reason": "limit", "until": 0.0, "noted": 1.0}},
    ("health.probes", "chat.primary"): {"until": 1.0},
    ("pairs", "0" * 32): {"session": "session:fuzz", "ids": ["c"], "pairs": []},
}
"""Values that a gateway reads at its start or with a request, by space and key."""


def _config(directory: Path) -> str:
    clock = "[server_tools.clock]\nenabled = true\nntp = { enabled = false }\n"
    return f'[store]\nurl = "file:{directory}"\n{clock}'


class StateFiles(Target):
    """The gateway starts and answers over damaged files, and logs no traceback."""

    name = "state-files"
    files: dict[str, bytes]

    async def open(self) -> None:
        """Keep the files that a gateway writes: sessions, operator state, stored responses, clock tasks."""
        directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        async with exchanging(_config(directory)) as exchanges:
            for text in _TEXTS:
                body = json.dumps(asking.body("chat", text, stream=False, model="chat.m")).encode()
                await exchanges.call(asking.path("chat", stream=False), body, SESSION)
            await exchanges.call("/v1/responses", json.dumps(_STORED).encode(), SESSION)
        store = FileStore(directory)
        for (space, key), value in _WRITTEN.items():
            await store.put(space, key, json.dumps(value).encode())
        await store.close()
        found = sorted(path for path in directory.rglob("*.json") if path.is_file())
        self.files = {str(path.relative_to(directory)): path.read_bytes() for path in found}
        assert self.files

    def make(self, random: Random) -> bytes:
        """Return a file's name in a line, then its damaged bytes."""
        name = random.choice(sorted(self.files))
        data = self.files[name]
        damaged = (
            mutate.data(data, random) if random.random() < 0.5 else mutate.json_body(json.loads(data), random)
        )
        return name.encode() + b"\n" + damaged

    async def check(self, data: bytes) -> None:
        name, _, damaged = data.partition(b"\n")
        with tempfile.TemporaryDirectory() as folder:
            for known, content in {**self.files, name.decode(): damaged}.items():
                path = Path(folder) / known
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            async with exchanging(_config(Path(folder))) as exchanges:
                body = json.dumps(asking.body("chat", "Hello", stream=False, model="chat.m")).encode()
                answer = await exchanges.call(asking.path("chat", stream=False), body, SESSION)
                assert answer.status == 200, answer.body
                assert [line for line in exchanges.problems if "Traceback" in line] == []
