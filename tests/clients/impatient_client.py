#!/usr/bin/env python3
"""Calls a tool that takes longer than the client's request timeout, with FastMCP (fastmcp-tasks 4.1.2).

    impatient_client.py URL SECONDS

The timeout of each request is 2 seconds. `slow` may become a task, `never_slow` may not. Prints one line
for each check that held, and ends with status 1 at the first one that did not.
"""

from __future__ import annotations

import asyncio
import sys

import fastmcp_tasks
from fastmcp import Client

REQUEST_SECONDS = 2


async def call(url: str, tool: str, seconds: float) -> str:
    async with Client(url, timeout=REQUEST_SECONDS) as client:
        # `call_tool` would apply the timeout to the whole task.
        task = await fastmcp_tasks.call_tool_task(client, tool, {"seconds": seconds})
        return (await task.result()).content[0].text


async def run(url: str, seconds: float) -> int:
    served = await call(url, "slow", seconds)
    if served != "served":
        print(f"FAIL as a task: {served}", file=sys.stderr)
        return 1
    print("ok as a task", flush=True)
    try:
        served = await call(url, "never_slow", seconds)
    except Exception as error:
        served = f"{type(error).__name__}: {error}"
    if "timeout" not in served.lower() and "timed out" not in served.lower():
        print(f"FAIL no timeout without a task: {served}", file=sys.stderr)
        return 1
    print("ok timeout without a task")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1], float(sys.argv[2]))))
