#!/usr/bin/env python3
"""A server of the revision 2025-11-25, written with the Python SDK of its time (mcp 1.30.0).

    legacy_server.py --http     on a port of 127.0.0.1 that is free; prints `listening on URL`
    legacy_server.py --sse      the same, over the HTTP+SSE transport of 2024-11-05
    legacy_server.py --stdio    over standard input and output, until the input ends

What it offers is what every server in this folder offers: see README.md. It asks while the call runs, with requests
of its own. `pay` refuses with -32042 until a page that this program serves has been visited.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import Annotated

import anyio
import uvicorn
from mcp import UrlElicitationRequiredError
from mcp.server.fastmcp import Context, FastMCP
from mcp.shared.message import ServerMessageMetadata
from mcp.types import (
    CallToolResult,
    Completion,
    CompletionArgument,
    CreateMessageResult,
    ElicitRequestURLParams,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    ServerRequest,
    TextContent,
    Tool,
    ToolUseContent,
)
from pydantic import BaseModel, Field
from starlette.applications import Starlette

server = FastMCP("legacy-restaurant", log_level="WARNING")

# How often something was done that must not be done twice.
effects = 0

# Numbers the calls of `counter` in this process.
numbers = count(1)

# The accounts that are connected: their pages were visited.
connected: set[str] = set()


class Booking(BaseModel):
    date: str = Field(title="Day", json_schema_extra={"format": "date"})
    guests: int = Field(ge=1, le=8)
    seating: str = Field("inside", json_schema_extra={"enum": ["inside", "outside"]})


class City(BaseModel):
    city: str


class Nights(BaseModel):
    nights: int = Field(ge=1)


class Dish(BaseModel):
    dish: str


class Name(BaseModel):
    name: str


class Meal(BaseModel):
    dish: str
    price: float
    tags: list[str]


class Page(BaseHTTPRequestHandler):
    """The page on which a person connects an account: /connect/ACCOUNT."""

    def do_GET(self) -> None:
        connected.add(self.path.removeprefix("/connect/"))
        body = b"connected"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


pages = ThreadingHTTPServer(("127.0.0.1", 0), Page)


def did_something() -> None:
    global effects
    effects += 1


async def sample(ctx: Context, question: str) -> CreateMessageResult:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=question))
    return await ctx.session.create_message([message], max_tokens=100, related_request_id=ctx.request_id)


async def list_roots(ctx: Context) -> ListRootsResult:
    # The session's own method does not say which call it belongs to.
    metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
    return await ctx.session.send_request(ServerRequest(ListRootsRequest()), ListRootsResult, metadata=metadata)


def names_of(roots: ListRootsResult) -> str:
    return ", ".join(root.name or str(root.uri) for root in roots.roots)


def text_of(sampled: CreateMessageResult) -> str:
    assert isinstance(sampled.content, TextContent)
    return sampled.content.text


@server.tool()
async def add(a: int, b: int) -> str:
    """Adds."""
    return str(a + b)


@server.tool(name="effects")
async def count_effects() -> str:
    """Counts what was done."""
    return str(effects)


@server.tool()
async def book_table(ctx: Context) -> str:
    """Books a table."""
    answer = await ctx.elicit("When, and for how many?", Booking)
    if answer.action != "accept":
        return f"no table was booked: {answer.action}"
    did_something()
    booking = answer.data
    return f"a table for {booking.guests} on {booking.date}, {booking.seating}"


@server.tool()
async def plan_trip(ctx: Context) -> str:
    """Plans a trip."""
    city = await ctx.elicit("Where to?", City)
    if city.action != "accept":
        return "no trip"
    nights = await ctx.elicit(f"How many nights in {city.data.city}?", Nights)
    if nights.action != "accept":
        return "no trip"
    did_something()
    return f"{nights.data.nights} nights in {city.data.city}"


@server.tool()
async def order_dinner(ctx: Context) -> str:
    """Orders dinner: everything is asked at once, among other messages."""
    said: dict[str, str] = {}

    async def ask_dish() -> None:
        answer = await ctx.elicit("What would you like?", Dish)
        said["dish"] = answer.data.dish if answer.action == "accept" else "nothing"

    async def ask_wine() -> None:
        said["wine"] = text_of(await sample(ctx, "Which wine?"))

    async def ask_places() -> None:
        said["places"] = names_of(await list_roots(ctx))

    await ctx.info("The kitchen is open.")
    await ctx.report_progress(1, 2)
    async with anyio.create_task_group() as asks:
        for ask in (ask_dish, ask_wine, ask_places):
            asks.start_soon(ask)
    did_something()
    return f"{said['dish']} with {said['wine']} in {said['places']}"


@server.tool()
async def sign_in(ctx: Context) -> str:
    """Signs in."""
    answer = await ctx.elicit_url("Please sign in.", "https://example.com/login?for=you", str(uuid.uuid4()))
    return "signed in" if answer.action == "accept" else f"not signed in: {answer.action}"


@server.tool()
async def suggest(about: str, ctx: Context) -> str:
    """Asks the model."""
    opinion = await sample(ctx, f"What about {about}?")
    return f"the model {opinion.model} said: {text_of(opinion)}"


@server.tool()
async def suggest_with_tools(about: str, ctx: Context) -> str:
    """Asks the model, which may use a tool."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=f"What about {about}?"))
    schema = {"type": "object", "properties": {"country": {"type": "string"}}}
    tools = [Tool(name="list_wines", description="Lists wines", inputSchema=schema)]
    opinion = await ctx.session.create_message(
        [message], max_tokens=100, tools=tools, related_request_id=ctx.request_id
    )
    [used] = [block for block in opinion.content_as_list if isinstance(block, ToolUseContent)]
    return f"the model called {used.name}({used.input['country']})"


@server.tool(name="list_places")
async def list_places(ctx: Context) -> str:
    """Lists places."""
    return names_of(await list_roots(ctx))


@server.tool()
async def pay(account: str) -> str:
    """Pays from an account that must have been connected before."""
    if account not in connected:
        params = ElicitRequestURLParams(
            mode="url",
            message="Please connect your account.",
            url=f"http://127.0.0.1:{pages.server_port}/connect/{account}",
            elicitationId=str(uuid.uuid4()),
        )
        raise UrlElicitationRequiredError([params])
    did_something()
    return f"paid from {account}"


@server.tool()
async def echo(text: str) -> str:
    """Repeats a text."""
    return text


@server.tool()
async def slow(seconds: float, ctx: Context) -> str:
    """Reports progress in four steps."""
    for step in range(1, 5):
        await ctx.report_progress(step, 4, f"step {step}")
        await anyio.sleep(seconds / 4)
    return "served"


@server.tool()
async def log(ctx: Context) -> str:
    """Logs two messages."""
    await ctx.info("The kitchen is open.")
    await ctx.warning("The kitchen closes soon.")
    return "logged"


@server.tool()
async def counter() -> str:
    """Counts the calls of this tool in this process."""
    return json.dumps({"count": next(numbers), "pid": os.getpid()})


@server.tool()
async def fail() -> CallToolResult:
    """Fails."""
    return CallToolResult(content=[TextContent(type="text", text="the kitchen is closed")], isError=True)


@server.tool()
async def structured() -> Annotated[CallToolResult, Meal]:
    """The meal of the day."""
    return CallToolResult(
        content=[TextContent(type="text", text="fish for 12.5")],
        structuredContent=Meal(dish="fish", price=12.5, tags=["fresh", "local"]).model_dump(),
        _meta={"com.example/kitchen": "open"},
    )


@server.completion()
async def complete(reference: object, argument: CompletionArgument, context: object) -> Completion:
    known = {"style": ["warmly", "wittily", "briefly"], "day": ["monday", "tuesday"]}
    return Completion(values=[value for value in known[argument.name] if value.startswith(argument.value)])


@server.prompt()
async def greeting(style: str, ctx: Context) -> str:
    """Greets."""
    answer = await ctx.elicit("Who is to be greeted?", Name)
    name = answer.data.name if answer.action == "accept" else "nobody"
    return f"Greet {name}, {style}."


@server.resource("restaurant://menu", mime_type="text/plain")
async def menu() -> str:
    return "fish, cheese"


@server.resource("restaurant://diary/{day}", mime_type="text/plain")
async def diary(day: str, ctx: Context) -> str:
    answer = await ctx.elicit("Whose diary?", Name)
    name = answer.data.name if answer.action == "accept" else "nobody"
    return f"{name} on {day}"


def serve_http(app: Starlette, path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}{path}", flush=True)
        config = uvicorn.Config(app, log_level="warning")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    Thread(target=pages.serve_forever, daemon=True).start()
    match sys.argv[1:]:
        case ["--stdio"]:
            server.run("stdio")
        case ["--http"]:
            serve_http(server.streamable_http_app(), "/mcp")
        case ["--sse"]:
            serve_http(server.sse_app(), "/sse")
        case _:
            sys.exit("usage: legacy_server.py --http | --sse | --stdio")
