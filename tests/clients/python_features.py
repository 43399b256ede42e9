#!/usr/bin/env python3
"""Goes through every feature of `refrain-conformance server` with the Python SDK (mcp 2.3.0).

    python_features.py URL
    python_features.py --stdio COMMAND [ARGUMENT...]

Each check opens a connection of its own. It prints one line `ok NAME` or `FAIL NAME: REASON` for each
check and a last line with their number, and ends with status 1 if one failed.
"""

from __future__ import annotations

import argparse
import logging
import sys

import anyio
from mcp import StdioServerParameters
from python_checks import calls, rounds, extras, changes  # noqa: F401, I001: they list their checks, in this order
from python_checks.support import CHECKS, Server, reason_of

SECONDS_FOR_ONE_CHECK = 120


async def run(server: Server) -> int:
    failed = 0
    for name, check in CHECKS.items():
        try:
            with anyio.fail_after(SECONDS_FOR_ONE_CHECK):
                await check(server)
            print(f"ok {name}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAIL {name}: {reason_of(error)}", flush=True)
    print(f"{len(CHECKS)} checks, {failed} failed", flush=True)
    return 1 if failed else 0


def server_from(arguments: list[str]) -> Server:
    parser = argparse.ArgumentParser(description="Go through every feature with the Python SDK.")
    parser.add_argument("url", nargs="?", help="the server's endpoint, such as http://127.0.0.1:8080/mcp")
    parser.add_argument("--stdio", nargs=argparse.REMAINDER, metavar="COMMAND", help="start this server instead")
    parsed = parser.parse_args(arguments)
    if parsed.stdio:
        command, *rest = parsed.stdio
        return StdioServerParameters(command=command, args=rest)
    if not parsed.url:
        parser.error("an URL or --stdio COMMAND is needed")
    return parsed.url


if __name__ == "__main__":
    # The SDK warns of every tool that it calls without having listed it.
    logging.disable(logging.WARNING)
    sys.exit(anyio.run(run, server_from(sys.argv[1:])))
