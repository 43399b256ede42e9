#!/usr/bin/env python3
"""A driver for the Python SDK (mcp 2.3.0), which speaks 2026-07-28. See README.md."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp.types
from driving import Person, drive
from mcp import Client, StdioServerParameters


@asynccontextmanager
async def connect(target: dict[str, Any], person: Person) -> AsyncIterator[Client]:
    server = target.get("url")
    if server is None:
        command, *arguments = target["command"]
        server = StdioServerParameters(command=command, args=arguments)
    async with Client(
        server,
        elicitation_callback=person.elicit,
        sampling_callback=person.sample,
        sampling_capabilities=mcp.types.SamplingCapability(tools=mcp.types.SamplingToolsCapability()),
        list_roots_callback=person.roots,
        logging_callback=person.note_log,
        log_level="info",
    ) as client:
        # The SDK falls back to the legacy handshake without a word.
        if client.protocol_version != "2026-07-28":
            raise RuntimeError(f"negotiated {client.protocol_version}")
        yield client


if __name__ == "__main__":
    drive(connect, mcp.types)
