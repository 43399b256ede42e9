#!/usr/bin/env python3
"""Drives tasks as an ordinary user of FastMCP (fastmcp-tasks 4.1.2), whose `tasks/*` requests have no `Mcp-Name`.

    fastmcp_client.py URL

The library polls the tasks and answers their asks: this script only registers a callback and calls tools.
It prints one line `ok NAME` for each check that held, and ends with status 1 and the reason at the first
one that did not.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import fastmcp_tasks
from fastmcp import Client
from fastmcp.client.elicitation import ElicitRequestParams

SECONDS_FOR_ALL = 180


class CheckFailed(Exception):
    """A check that did not hold; its text is the reason."""


def same(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise CheckFailed(f"{what}: {found!r}, not {wanted!r}")


async def elicit(message: str, response_type: Any, params: ElicitRequestParams, context: Any) -> dict[str, Any]:
    same(message, "Please provide the input string to echo back", "asked")
    return {"input": "Hello World!"}


async def completed(client: Client) -> None:
    """The call looks like any other, since the library polls the task."""
    result = await client.call_tool("echo_task", {})
    same(result.content[0].text, "Echo: Hello World!", "answered")


async def driven(client: Client) -> None:
    task = await fastmcp_tasks.call_tool_task(client, "echo_task", {})
    same((await task.wait(state="input_required")).status, "input_required", "status")
    same((await task.result()).content[0].text, "Echo: Hello World!", "answered")


async def cancelled(client: Client) -> None:
    task = await fastmcp_tasks.call_tool_task(client, "echo_task", {})
    await task.cancel()
    same((await task.wait()).status, "cancelled", "status")


CHECKS = {"completed": completed, "driven": driven, "cancelled": cancelled}


async def run(url: str) -> int:
    current = "connect"
    try:
        async with asyncio.timeout(SECONDS_FOR_ALL), Client(url, elicitation_handler=elicit) as client:
            for current, check in CHECKS.items():
                await check(client)
                print(f"ok {current}", flush=True)
    except Exception as error:
        print(f"FAIL {current}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1])))
