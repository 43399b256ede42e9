#!/usr/bin/env python3
"""A server written with FastMCP (fastmcp-slim 4.1.2), revision 2026-07-28.

    fastmcp_server.py --http     on a port of 127.0.0.1 that is free; prints `listening on URL`
    fastmcp_server.py --stdio    over standard input and output, until the input ends

What it offers is what every server in this folder offers: see README.md. Tools, prompts and resources ask by returning
an `InputRequiredResult`. `book_table_inline` asks with `ctx.elicit`, which FastMCP supports on legacy connections only.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from itertools import count
from typing import Any, TypeVar

import mcp_types as types
import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.prompts import Message, PromptResult
from fastmcp.tools import ToolResult
from mcp.server.request_state import RequestStateSecurity
from mcp_types import InputRequiredResult
from pydantic import BaseModel, Field

# The key is known, so that a server that is started anew reads what the one before it wrote.
server = FastMCP(
    "fastmcp-restaurant",
    version="1",
    request_state_security=RequestStateSecurity(keys=["a key that is as public as this file"]),
)

# How often something was done that must not be done twice.
effects = 0

# Numbers the calls of `counter` in this process.
numbers = count(1)


class Booking(BaseModel):
    date: str = Field(title="Day", json_schema_extra={"format": "date"})
    guests: int = Field(ge=1, le=8)
    seating: str = Field("inside", json_schema_extra={"enum": ["inside", "outside"]})

    def booked(self) -> str:
        did_something()
        return f"a table for {self.guests} on {self.date}, {self.seating}"


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


Form = TypeVar("Form", bound=BaseModel)


def did_something() -> None:
    global effects
    effects += 1


def form(message: str, fields: type[BaseModel]) -> types.ElicitRequest:
    params = types.ElicitRequestFormParams(message=message, requested_schema=fields.model_json_schema())
    return types.ElicitRequest(params=params)


def model(question: str, tools: list[types.Tool] | None = None) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=question))
    params = types.CreateMessageRequestParams(messages=[message], max_tokens=100, tools=tools)
    return types.CreateMessageRequest(params=params)


def ask(state: dict[str, Any] | None = None, **asks: types.InputRequest) -> InputRequiredResult:
    return InputRequiredResult(input_requests=asks, request_state=json.dumps(state) if state else None)


def answer(ctx: Context, key: str) -> Any:
    return (ctx.input_responses or {}).get(key)


def content(ctx: Context, key: str, fields: type[Form]) -> Form | None:
    """The content of a form that was accepted."""
    given = answer(ctx, key)
    return fields.model_validate(given.content) if given is not None and given.action == "accept" else None


def names_of(roots: types.ListRootsResult) -> str:
    return ", ".join(root.name or str(root.uri) for root in roots.roots)


@server.tool
async def add(a: int, b: int) -> str:
    """Adds."""
    return str(a + b)


@server.tool(name="effects")
async def count_effects() -> str:
    """Counts what was done."""
    return str(effects)


@server.tool
async def book_table(ctx: Context) -> str | InputRequiredResult:
    """Books a table."""
    given = answer(ctx, "booking")
    if given is None:
        return ask(booking=form("When, and for how many?", Booking))
    if given.action != "accept":
        return f"no table was booked: {given.action}"
    return Booking.model_validate(given.content).booked()


@server.tool
async def book_table_inline(ctx: Context) -> str:
    """Books a table: asks while the call runs."""
    given = await ctx.elicit("When, and for how many?", Booking)
    return given.data.booked() if given.action == "accept" else f"no table was booked: {given.action}"


@server.tool
async def plan_trip(ctx: Context) -> str | InputRequiredResult:
    """Plans a trip."""
    if ctx.request_state is None:
        return ask({"asked": "city"}, city=form("Where to?", City))
    state = json.loads(ctx.request_state)
    if state["asked"] == "city":
        chosen = content(ctx, "city", City)
        if chosen is None:
            return "no trip"
        return ask({"asked": "nights", "city": chosen.city}, nights=form(f"How many nights in {chosen.city}?", Nights))
    nights = content(ctx, "nights", Nights)
    if nights is None:
        return "no trip"
    did_something()
    return f"{nights.nights} nights in {state['city']}"


@server.tool
async def order_dinner(ctx: Context) -> str | InputRequiredResult:
    """Orders dinner."""
    if ctx.input_responses is None:
        asks = {"dish": form("What would you like?", Dish), "wine": model("Which wine?")}
        return ask(**asks, places=types.ListRootsRequest())
    dish = content(ctx, "dish", Dish)
    if dish is None:
        return "no dinner"
    did_something()
    return f"{dish.dish} with {answer(ctx, 'wine').content.text} in {names_of(answer(ctx, 'places'))}"


@server.tool
async def sign_in(ctx: Context) -> str | InputRequiredResult:
    """Signs in."""
    given = answer(ctx, "login")
    if given is None:
        params = types.ElicitRequestURLParams(message="Please sign in.", url="https://example.com/login?for=you")
        return ask(login=types.ElicitRequest(params=params))
    return "signed in" if given.action == "accept" else f"not signed in: {given.action}"


@server.tool
async def suggest(about: str, ctx: Context) -> str | InputRequiredResult:
    """Asks the model."""
    opinion = answer(ctx, "opinion")
    if opinion is None:
        return ask(opinion=model(f"What about {about}?"))
    return f"the model {opinion.model} said: {opinion.content.text}"


@server.tool
async def suggest_with_tools(about: str, ctx: Context) -> str | InputRequiredResult:
    """Asks the model, which may use a tool."""
    opinion = answer(ctx, "opinion")
    if opinion is None:
        schema = {"type": "object", "properties": {"country": {"type": "string"}}}
        tool = types.Tool(name="list_wines", description="Lists wines", input_schema=schema)
        return ask(opinion=model(f"What about {about}?", [tool]))
    [used] = [block for block in opinion.content_as_list if isinstance(block, types.ToolUseContent)]
    return f"the model called {used.name}({used.input['country']})"


@server.tool
async def list_places(ctx: Context) -> str | InputRequiredResult:
    """Lists places."""
    places = answer(ctx, "places")
    return ask(places=types.ListRootsRequest()) if places is None else names_of(places)


@server.tool
async def echo(text: str) -> str:
    """Repeats a text."""
    return text


@server.tool
async def slow(seconds: float, ctx: Context) -> str:
    """Reports progress in four steps."""
    for step in range(1, 5):
        await ctx.report_progress(step, 4, f"step {step}")
        await asyncio.sleep(seconds / 4)
    return "served"


@server.tool
async def log(ctx: Context) -> str:
    """Logs two messages."""
    await ctx.info("The kitchen is open.")
    await ctx.warning("The kitchen closes soon.")
    return "logged"


@server.tool
async def counter() -> str:
    """Counts the calls of this tool in this process."""
    return json.dumps({"count": next(numbers), "pid": os.getpid()})


@server.tool
async def fail() -> ToolResult:
    """Fails."""
    return ToolResult("the kitchen is closed", is_error=True)


@server.tool(output_schema=Meal.model_json_schema())
async def structured() -> ToolResult:
    """The meal of the day."""
    meal = Meal(dish="fish", price=12.5, tags=["fresh", "local"])
    return ToolResult("fish for 12.5", meal.model_dump(), meta={"com.example/kitchen": "open"})


@server.completion
def complete(reference: object, argument: types.CompletionArgument, context: object) -> list[str]:
    known = {"style": ["warmly", "wittily", "briefly"], "day": ["monday", "tuesday"]}
    return [value for value in known[argument.name] if value.startswith(argument.value)]


@server.prompt
async def greeting(style: str, ctx: Context) -> PromptResult | InputRequiredResult:
    """Greets."""
    given = content(ctx, "name", Name)
    if given is None:
        return ask(name=form("Who is to be greeted?", Name))
    return PromptResult([Message(f"Greet {given.name}, {style}.")])


@server.resource("restaurant://menu", mime_type="text/plain")
async def menu() -> str:
    return "fish, cheese"


@server.resource("restaurant://diary/{day}", mime_type="text/plain")
async def diary(day: str, ctx: Context) -> str | InputRequiredResult:
    given = content(ctx, "name", Name)
    return ask(name=form("Whose diary?", Name)) if given is None else f"{given.name} on {day}"


def serve_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
        config = uvicorn.Config(server.http_app(), log_level="warning")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--stdio"]:
            server.run("stdio", show_banner=False)
        case ["--http"]:
            serve_http()
        case _:
            sys.exit("usage: fastmcp_server.py --http | --stdio")
