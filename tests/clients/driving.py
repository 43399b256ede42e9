"""The common part of the drivers for the two Python SDKs: the job, the scripted person and the outcomes. See README.md."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from types import ModuleType
from typing import Any

import anyio

SECONDS_FOR_ONE_CALL = 60
SECONDS_FOR_NOTIFICATIONS = 10


class Person:
    """The person and the model behind a client. Follows the script of the current call, and records the asks."""

    def __init__(self, types: ModuleType) -> None:
        self.types = types
        self.begin({}, None)

    def begin(self, call: dict[str, Any], barrier: asyncio.Barrier | None) -> None:
        self.script: dict[str, Any] = call.get("person", {})
        self.barrier = barrier
        self.asked: list[str] = []
        self.progress: list[float] = []
        self.logs: list[str] = []

    async def record(self, ask: str) -> None:
        """With a barrier, no ask is answered before every call has one."""
        self.asked.append(ask)
        if self.barrier is not None:
            await self.barrier.wait()

    async def elicit(self, context: object, params: Any) -> Any:
        asked = params.model_dump(by_alias=True, mode="json")
        action = self.script.get("action", "accept")
        if asked.get("mode") == "url":
            await self.record(f"url: {asked['message']} {asked['url']}")
            return self.types.ElicitResult(action=action)
        await self.record(f"form: {asked['message']}")
        if action != "accept":
            return self.types.ElicitResult(action=action)
        fields = self.script.get("fields", {})
        names = asked["requestedSchema"]["properties"]
        return self.types.ElicitResult(action=action, content={name: fields[name] for name in names if name in fields})

    async def sample(self, context: object, params: Any) -> Any:
        blocks = [block for message in params.messages for block in message.content_as_list]
        question = " ".join(block.text for block in blocks if block.type == "text")
        answer = {"role": "assistant", "model": "scripted"}
        if params.tools:
            [tool] = params.tools
            await self.record(f"model with {tool.name}: {question}")
            used = {"type": "tool_use", "id": "use-1", "name": tool.name, "input": self.script["input"]}
            return self.types.CreateMessageResultWithTools.model_validate(
                answer | {"content": [used], "stopReason": "toolUse"}
            )
        await self.record(f"model: {question}")
        said = {"type": "text", "text": self.script["said"]}
        return self.types.CreateMessageResult.model_validate(answer | {"content": said, "stopReason": "endTurn"})

    async def roots(self, context: object) -> Any:
        # Without the barrier: some servers ask for the roots at any time.
        self.asked.append("roots")
        roots = [{"uri": f"file:///{name}", "name": name} for name in self.script.get("roots", [])]
        return self.types.ListRootsResult.model_validate({"roots": roots})

    async def note_progress(self, done: float, total: float | None, message: str | None) -> None:
        self.progress.append(done)

    async def note_log(self, params: Any) -> None:
        self.logs.append(f"{params.level}: {params.data}")

    async def notified(self, call: dict[str, Any]) -> None:
        """Waits for the notifications that the call expects: they may be handled after its result."""
        with anyio.move_on_after(SECONDS_FOR_NOTIFICATIONS):
            while len(self.progress) < call.get("progress", 0) or len(self.logs) < call.get("logs", 0):
                await anyio.sleep(0.01)


Connect = Callable[[dict[str, Any], Person], AbstractAsyncContextManager[Any]]


async def request(client: Any, call: dict[str, Any], person: Person) -> Any:
    types = person.types
    match call:
        case {"tool": name, "arguments": arguments}:
            return await client.call_tool(name, arguments, progress_callback=person.note_progress)
        case {"prompt": name, "complete": argument}:
            return await client.complete(types.PromptReference(type="ref/prompt", name=name), argument)
        case {"template": uri, "complete": argument}:
            return await client.complete(types.ResourceTemplateReference(type="ref/resource", uri=uri), argument)
        case {"prompt": name, "arguments": arguments}:
            return await client.get_prompt(name, arguments)
        case {"resource": uri}:
            return await client.read_resource(uri)
        case {"list": "tools" | "prompts" | "resources" | "resource_templates" as what}:
            return await getattr(client, f"list_{what}")()
    raise ValueError(f"unknown call {call}")


async def perform(client: Any, call: dict[str, Any], person: Person) -> dict[str, Any]:
    outcome: dict[str, Any] = {}
    try:
        with anyio.fail_after(SECONDS_FOR_ONE_CALL):
            result = await request(client, call, person)
            outcome["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
            await person.notified(call)
    except Exception as error:
        outcome["error"] = describe(error)
    return outcome | {"asked": person.asked, "progress": person.progress, "logs": person.logs}


def describe(error: BaseException) -> str:
    """The innermost reason: a callback's error arrives wrapped in exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


async def perform_together(connect: Connect, target: Any, calls: list[Any], types: ModuleType) -> list[Any]:
    """Each call has its own connection. No ask is answered before all of them are open."""
    barrier = asyncio.Barrier(len(calls))

    async def one(call: dict[str, Any]) -> dict[str, Any]:
        person = Person(types)
        async with connect(target, person) as client:
            person.begin(call, barrier)
            return await perform(client, call, person)

    return await asyncio.gather(*(one(call) for call in calls))


async def outcomes(connect: Connect, job: dict[str, Any], types: ModuleType) -> AsyncIterator[Any]:
    for target in job["targets"]:
        person = Person(types)
        async with connect(target, person) as client:
            for check in job["checks"]:
                if len(check["calls"]) > 1:
                    found = await perform_together(connect, target, check["calls"], types)
                else:
                    [call] = check["calls"]
                    person.begin(call, None)
                    found = [await perform(client, call, person)]
                yield {"target": target["name"], "check": check["name"], "outcomes": found}


async def run(connect: Connect, types: ModuleType) -> None:
    async for outcome in outcomes(connect, json.load(sys.stdin), types):
        print(json.dumps(outcome), flush=True)


def drive(connect: Connect, types: ModuleType) -> None:
    try:
        anyio.run(run, connect, types)
    except BaseException as error:
        sys.exit(describe(error))
