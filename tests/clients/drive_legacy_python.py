#!/usr/bin/env python3
"""A driver for the Python SDK of 2025-11-25 (mcp 1.30.0). See README.md."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp.types
from driving import Person, drive
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client


@asynccontextmanager
async def open_streams(target: dict[str, Any]) -> AsyncIterator[tuple[Any, Any]]:
    if "url" in target:
        async with streamable_http_client(target["url"]) as (read, write, _):
            yield read, write
    else:
        command, *arguments = target["command"]
        async with stdio_client(StdioServerParameters(command=command, args=arguments)) as (read, write):
            yield read, write


@asynccontextmanager
async def connect(target: dict[str, Any], person: Person) -> AsyncIterator[ClientSession]:
    async with open_streams(target) as (read, write):
        async with ClientSession(
            read,
            write,
            elicitation_callback=person.elicit,
            sampling_callback=person.sample,
            sampling_capabilities=mcp.types.SamplingCapability(tools=mcp.types.SamplingToolsCapability()),
            list_roots_callback=person.roots,
            logging_callback=person.note_log,
        ) as session:
            opened = await session.initialize()
            if opened.protocolVersion != "2025-11-25":
                raise RuntimeError(f"negotiated {opened.protocolVersion}")
            if opened.capabilities.logging is not None:
                await session.set_logging_level("info")
            yield session


if __name__ == "__main__":
    drive(connect, mcp.types)
