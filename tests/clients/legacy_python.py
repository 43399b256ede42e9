#!/usr/bin/env python3
"""Plays stories as an ordinary user of the Python SDK for 2025-11-25 (mcp 1.x).

    legacy_python.py URL
    legacy_python.py --stdio COMMAND [ARGUMENT...]
    legacy_python.py --listen RESOURCE URL
    legacy_python.py --without-capabilities URL

With --listen it subscribes to a resource instead, says so by calling the tool `subscribed`, and
waits to be told that the resource changed. It says so by calling the tool again, and waits to be
told that the list of tools changed: the server is restarted meanwhile. With --without-capabilities it
calls a tool that asks, and cannot be asked.

What the server asks comes while a call goes on, and the SDK answers it by callbacks. It prints one
line `ok NAME` for each check that held, and ends with status 1 and the reason at the first one
that did not.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager

import anyio
from mcp import ClientSession, StdioServerParameters, stdio_client, types
from mcp.client.streamable_http import streamablehttp_client

ANSWERS = {"name": "octocat", "resolution": "Duplicate", "duplicateOfId": 4301}
ANALYSIS = "The mean of these three numbers is 2."
SECONDS_FOR_ALL = 180


class CheckFailed(Exception):
    """A check that did not hold; its text is the reason."""


def expect(holds: bool, reason: str) -> None:
    if not holds:
        raise CheckFailed(reason)


class User:
    """The person and the model behind the client."""

    def __init__(self) -> None:
        self.declines = False
        self.asked: list[str] = []

    async def elicit(self, context, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append("form")
        if self.declines:
            return types.ElicitResult(action="decline")
        content = {name: ANSWERS[name] for name in params.requestedSchema["properties"]}
        return types.ElicitResult(action="accept", content=content)

    async def sample(self, context, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        self.asked.append("sampling")
        text = types.TextContent(type="text", text=ANALYSIS)
        return types.CreateMessageResult(role="assistant", content=text, model="none", stopReason="endTurn")

    async def roots(self, context) -> types.ListRootsResult:
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root(uri="file:///project", name="project")])


@asynccontextmanager
async def connect(arguments: list[str]):
    if arguments[0] == "--stdio":
        parameters = StdioServerParameters(command=arguments[1], args=arguments[2:])
        async with stdio_client(parameters) as streams:
            yield streams
    else:
        async with streamablehttp_client(arguments[0]) as (read, write, _):
            yield read, write


def text_of(result: types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))


async def call(session: ClientSession, name: str, arguments: dict) -> str:
    result = await session.call_tool(name, arguments)
    expect(not result.isError, f"{name} failed: {text_of(result)}")
    return text_of(result)


async def play(session: ClientSession, user: User) -> None:
    opened = await session.initialize()
    expect(opened.protocolVersion == "2025-11-25", f"speaks {opened.protocolVersion}")
    expect(opened.serverInfo.name == "refrain", f"is {opened.serverInfo.name}")
    print("ok initialize")

    await session.send_ping()
    print("ok ping")

    names = [tool.name for tool in (await session.list_tools()).tools]
    expect("get_weather" in names, f"lists {names}")
    print("ok tools/list")

    said = await call(session, "get_weather", {"location": "New York"})
    expect("New York" in said and user.asked == ["form"], f"{said!r} after {user.asked}")
    print("ok get_weather")

    user.asked.clear()
    said = await call(session, "update_work_item", {"workItemId": 4522, "fields": {"System.State": "Resolved"}})
    expect("Duplicate" in said and user.asked == ["form", "form"], f"{said!r} after {user.asked}")
    print("ok update_work_item")

    user.asked.clear()
    said = await call(session, "weather_and_capital", {"location": "New York"})
    expect(ANALYSIS in said and sorted(user.asked) == ["form", "sampling"], f"{said!r} after {user.asked}")
    print("ok weather_and_capital")

    said = await call(session, "analyze_data", {"data": "1 2 3"})
    expect(said == ANALYSIS, repr(said))
    print("ok analyze_data")

    said = await call(session, "project_roots", {})
    expect("file:///project" in said, repr(said))
    print("ok project_roots")

    user.declines = True
    result = await session.call_tool("get_weather", {"location": "New York"})
    expect(result.isError is True, f"declined, and yet {text_of(result)!r}")
    print("ok get_weather declined")


async def listen(uri: str, url: str) -> None:
    changed = anyio.Event()
    listed = anyio.Event()

    async def hear(message) -> None:
        if isinstance(message, Exception):
            raise message
        said = getattr(message, "root", None)
        if isinstance(said, types.ResourceUpdatedNotification) and str(said.params.uri) == uri:
            changed.set()
        if isinstance(said, types.ToolListChangedNotification):
            listed.set()

    async with connect([url]) as (read, write):
        async with ClientSession(read, write, message_handler=hear) as session:
            await session.initialize()
            await session.subscribe_resource(uri)
            await call(session, "subscribed", {})
            await changed.wait()
            print("ok resources/updated")
            await call(session, "subscribed", {})
            await listed.wait()
            print("ok tools/list_changed")
            await session.send_ping()
            print("ok ping")


async def call_without_capabilities(url: str) -> None:
    """A host shows the model the text of a result, and drops an error."""
    async with connect([url]) as (read, write):
        async with ClientSession(read, write) as session:
            await session.initialize()
            result = await session.call_tool("get_weather", {"location": "New York"})
            expect(result.isError is True, f"cannot be asked, and yet {text_of(result)!r}")
            expect("tell the user" in text_of(result), repr(text_of(result)))
            print("ok get_weather without elicitation")


async def main() -> None:
    user = User()
    with anyio.fail_after(SECONDS_FOR_ALL):
        if sys.argv[1] == "--without-capabilities":
            await call_without_capabilities(sys.argv[2])
            return
        if sys.argv[1] == "--listen":
            await listen(sys.argv[2], sys.argv[3])
            return
        async with connect(sys.argv[1:]) as (read, write):
            callbacks = {
                "elicitation_callback": user.elicit,
                "sampling_callback": user.sample,
                "list_roots_callback": user.roots,
            }
            async with ClientSession(read, write, **callbacks) as session:
                await play(session, user)


def reason_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


try:
    anyio.run(main)
except BaseException as error:
    reason = reason_of(error)
    print(f"FAIL {type(reason).__name__}: {reason}")
    sys.exit(1)
