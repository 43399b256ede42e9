#!/usr/bin/env python3
"""Plays the documents' stories as an ordinary user of the Python SDK (mcp 2.3.0).

    python_client.py [--token TOKEN] URL
    python_client.py --stdio COMMAND [ARGUMENT...]

The SDK runs the rounds: this script only registers callbacks and calls tools. It prints one line
`ok NAME` for each check that held, and ends with status 1 and the reason at the first one that
did not.
"""

from __future__ import annotations

import argparse
import sys

import anyio
import httpx2
from mcp import Client, CreateMessageResult, StdioServerParameters
from mcp.client import ClientRequestContext, Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.types import (
    CallToolResult,
    CreateMessageRequestParams,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    TextContent,
)

PROTOCOL_VERSION = "2026-07-28"
WORK_ITEM_RESOLVED = (
    "Bug #4522 resolved as Duplicate of Bug #4301. State set to Resolved and duplicate link created."
)
ANALYSIS = "The mean of these three numbers is 2."
SECONDS_FOR_ALL = 180
SECONDS_FOR_ONE_ROUND = 60


class CheckFailed(Exception):
    """A check that did not hold; its text is the reason."""


def expect(holds: bool, reason: str) -> None:
    if not holds:
        raise CheckFailed(reason)


class User:
    """The person and the model behind the client: answers by field name, and remembers what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, str | int] = {}
        self.declines = False
        self.asked: list[str] = []
        self.sampled: list[str] = []

    def sits_down(self, answers: dict[str, str | int] | None = None, *, declines: bool = False) -> None:
        self.answers = answers or {}
        self.declines = declines
        self.asked = []
        self.sampled = []

    async def elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        expect(isinstance(params, ElicitRequestFormParams), f"asked in mode {params.mode!r}, not with a form")
        expect(bool(params.message), "asked without a message")
        self.asked.append(str(context.request_id))
        if self.declines:
            return ElicitResult(action="decline")
        fields = params.requested_schema.get("properties", {})
        content = {name: self.answers[name] for name in fields if name in self.answers}
        missing = [name for name in params.requested_schema.get("required", []) if name not in content]
        expect(not missing, f"asked for {missing}, which this script has no answer to")
        return ElicitResult(action="accept", content=content)

    async def sample(self, context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
        blocks = [block for message in params.messages for block in message.content_as_list]
        self.sampled.append(" ".join(block.text for block in blocks if isinstance(block, TextContent)))
        return CreateMessageResult(
            role="assistant",
            content=TextContent(type="text", text=ANALYSIS),
            model="scripted",
            stop_reason="endTurn",
        )


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


async def discover(client: Client, user: User) -> None:
    # The SDK falls back to the legacy handshake without a word, so the version is checked.
    expect(client.protocol_version == PROTOCOL_VERSION, f"negotiated {client.protocol_version}")


async def list_tools(client: Client, user: User) -> None:
    listed = {tool.name for tool in (await client.list_tools()).tools}
    missing = {"get_weather", "update_work_item", "analyze_data"} - listed
    expect(not missing, f"not listed: {sorted(missing)}; listed: {sorted(listed)}")


async def get_weather(client: Client, user: User) -> None:
    user.sits_down({"name": "octocat"})
    result = await client.call_tool("get_weather", {"location": "New York"})
    text = text_of(result)
    expect(not result.is_error, f"ended with an error: {text!r}")
    expect(user.asked == ["github_login"], f"asked {user.asked}")
    expect("Current weather in New York:" in text and "72°F" in text, f"answered {text!r}")


async def update_work_item(client: Client, user: User) -> None:
    user.sits_down({"resolution": "Duplicate", "duplicateOfId": 4301})
    result = await client.call_tool(
        "update_work_item", {"workItemId": 4522, "fields": {"System.State": "Resolved"}}
    )
    text = text_of(result)
    expect(not result.is_error, f"ended with an error: {text!r}")
    expect(user.asked == ["resolution", "duplicate_of"], f"asked {user.asked}")
    expect(text == WORK_ITEM_RESOLVED, f"answered {text!r}")


async def declined(client: Client, user: User) -> None:
    user.sits_down(declines=True)
    result = await client.call_tool("get_weather", {"location": "New York"})
    text = text_of(result)
    expect(user.asked == ["github_login"], f"asked {user.asked}; a decline is an answer")
    expect("Current weather" not in text, f"went on after a decline: {text!r}")
    expect(bool(text), "ended without a word to the caller")


async def analyze_data(client: Client, user: User) -> None:
    user.sits_down()
    result = await client.call_tool("analyze_data", {"data": "1,2,3"})
    text = text_of(result)
    expect(not result.is_error, f"ended with an error: {text!r}")
    expect(len(user.sampled) == 1, f"sampled {len(user.sampled)} times")
    expect("1,2,3" in user.sampled[0], f"the model was not shown the data: {user.sampled[0]!r}")
    expect(ANALYSIS in text, f"answered {text!r}, without what the model said")


CHECKS = {
    "discover": discover,
    "tools/list": list_tools,
    "get_weather": get_weather,
    "update_work_item": update_work_item,
    "get_weather declined": declined,
    "analyze_data": analyze_data,
}


def reason_of(error: BaseException) -> str:
    """The innermost reason: a callback's error arrives wrapped in exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, CheckFailed):
        return str(error)
    return f"{type(error).__name__}: {error}"


async def run(server: Server) -> int:
    user = User()
    current = "connect"
    try:
        with anyio.fail_after(SECONDS_FOR_ALL):
            async with Client(
                server,
                elicitation_callback=user.elicit,
                sampling_callback=user.sample,
                read_timeout_seconds=SECONDS_FOR_ONE_ROUND,
            ) as client:
                for current, check in CHECKS.items():
                    await check(client, user)
                    print(f"ok {current}", flush=True)
                current = "close"
    except Exception as error:
        print(f"FAIL {current}: {reason_of(error)}", file=sys.stderr)
        return 1
    return 0


Server = str | StdioServerParameters | Transport


def server_from(arguments: list[str]) -> Server:
    parser = argparse.ArgumentParser(description="Play the documents' stories with the Python SDK.")
    parser.add_argument("url", nargs="?", help="the server's endpoint, such as http://127.0.0.1:8080/mcp")
    parser.add_argument("--token", help="an access token to send with every request")
    parser.add_argument("--stdio", nargs=argparse.REMAINDER, metavar="COMMAND", help="start this server instead")
    parsed = parser.parse_args(arguments)
    if parsed.stdio:
        command, *rest = parsed.stdio
        return StdioServerParameters(command=command, args=rest)
    if not parsed.url:
        parser.error("an URL or --stdio COMMAND is needed")
    if parsed.token:
        headers = {"authorization": f"Bearer {parsed.token}"}
        return streamable_http_client(parsed.url, http_client=httpx2.AsyncClient(headers=headers))
    return parsed.url


if __name__ == "__main__":
    sys.exit(anyio.run(run, server_from(sys.argv[1:])))
