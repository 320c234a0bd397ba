"""A conversation to be killed: it waits for ever at the point that its first argument names."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from routecodex.turns import Call, Conversation, Persist, ScriptedSender, ToolPlugin


async def here() -> None:
    print("here", flush=True)
    await asyncio.Event().wait()


def quick() -> str:
    return "ran"


async def slow() -> str:
    await here()
    return "never"


PLACES: dict[str, list[Any]] = {
    "tool": [["Let me see. ", Call("quick"), Call("slow")]],
    "answer": [[Call("quick")], ["I th", "ink", here]],
    "call": [["I ", {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "x"}]}}]}, here]],
    "request": [[here]],
}


async def main(place: str, directory: str) -> None:
    persist = Persist(directory, "chat", interval=0)
    # One after the other: the first has its result before the second begins.
    tools = ToolPlugin([quick, slow], max_concurrent=1)
    conversation = Conversation(
        model="m",
        sender=ScriptedSender(PLACES[place]),
        plugins=[persist, tools],
        initial_messages=await persist.load(),
    )
    await conversation.send("go")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
