#!/usr/bin/env python3
"""A server written with the Python SDK (mcp 2.3.0), revision 2026-07-28.

    python_server.py --http     on a port of 127.0.0.1 that is free; prints `listening on URL`
    python_server.py --stdio    over standard input and output, until the input ends

What it offers is what every server in this folder offers: see README.md. Tools ask as the SDK's users do, through
resolvers; what those cannot ask, and prompts and resources, by hand.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from itertools import count
from typing import Annotated, Literal

import anyio
import uvicorn
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context, Elicit, ListRoots, MCPServer, Resolve, Sample
from mcp.server.request_state import RequestStateSecurity
from mcp.types import (
    CallToolResult,
    Completion,
    CompletionArgument,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListRootsResult,
    SamplingMessage,
    TextContent,
    Tool,
    ToolUseContent,
)
from pydantic import BaseModel, Field

# The key is known, so that a server that is started anew reads what the one before it wrote.
server = MCPServer(
    "python-restaurant",
    version="1",
    log_level="WARNING",
    request_state_security=RequestStateSecurity(keys=["a key that is as public as this file"]),
)

# How often something was done that must not be done twice.
effects = 0

# Numbers the calls of `counter` in this process.
numbers = count(1)


class Booking(BaseModel):
    date: str = Field(title="Day", json_schema_extra={"format": "date"})
    guests: int = Field(ge=1, le=8)
    seating: Literal["inside", "outside"] = "inside"


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


def did_something() -> None:
    global effects
    effects += 1


def model(question: str, tools: list[Tool] | None = None) -> Sample:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=question))
    return Sample([message], max_tokens=100, tools=tools)


def names_of(roots: ListRootsResult) -> str:
    return ", ".join(root.name or str(root.uri) for root in roots.roots)


def text_of(sampled: CreateMessageResult) -> str:
    assert isinstance(sampled.content, TextContent)
    return sampled.content.text


async def ask_booking() -> Elicit[Booking]:
    return Elicit("When, and for how many?", Booking)


async def ask_city() -> Elicit[City]:
    return Elicit("Where to?", City)


async def ask_nights(city: Annotated[City, Resolve(ask_city)]) -> Elicit[Nights]:
    return Elicit(f"How many nights in {city.city}?", Nights)


async def ask_dish() -> Elicit[Dish]:
    return Elicit("What would you like?", Dish)


async def ask_wine() -> Sample:
    return model("Which wine?")


async def ask_opinion(about: str) -> Sample:
    return model(f"What about {about}?")


async def ask_with_tools(about: str) -> Sample:
    schema = {"type": "object", "properties": {"country": {"type": "string"}}}
    return model(f"What about {about}?", [Tool(name="list_wines", description="Lists wines", input_schema=schema)])


async def ask_places() -> ListRoots:
    return ListRoots()


@server.tool()
async def add(a: int, b: int) -> str:
    """Adds."""
    return str(a + b)


@server.tool(name="effects")
async def count_effects() -> str:
    """Counts what was done."""
    return str(effects)


@server.tool()
async def book_table(answer: Annotated[ElicitationResult[Booking], Resolve(ask_booking)]) -> str:
    """Books a table."""
    if not isinstance(answer, AcceptedElicitation):
        return f"no table was booked: {answer.action}"
    did_something()
    booking = answer.data
    return f"a table for {booking.guests} on {booking.date}, {booking.seating}"


@server.tool()
async def plan_trip(
    city: Annotated[City, Resolve(ask_city)], nights: Annotated[Nights, Resolve(ask_nights)]
) -> str:
    """Plans a trip."""
    did_something()
    return f"{nights.nights} nights in {city.city}"


@server.tool()
async def order_dinner(
    dish: Annotated[Dish, Resolve(ask_dish)],
    wine: Annotated[CreateMessageResult, Resolve(ask_wine)],
    places: Annotated[ListRootsResult, Resolve(ask_places)],
) -> str:
    """Orders dinner."""
    did_something()
    return f"{dish.dish} with {text_of(wine)} in {names_of(places)}"


@server.tool()
async def sign_in(ctx: Context) -> str | InputRequiredResult:
    """Signs in."""
    answer = (ctx.input_responses or {}).get("login")
    if not isinstance(answer, ElicitResult):
        params = ElicitRequestURLParams(message="Please sign in.", url="https://example.com/login?for=you")
        return InputRequiredResult(input_requests={"login": ElicitRequest(params=params)})
    return "signed in" if answer.action == "accept" else f"not signed in: {answer.action}"


@server.tool()
async def suggest(about: str, opinion: Annotated[CreateMessageResult, Resolve(ask_opinion)]) -> str:
    """Asks the model."""
    return f"the model {opinion.model} said: {text_of(opinion)}"


@server.tool()
async def suggest_with_tools(
    about: str, opinion: Annotated[CreateMessageResultWithTools, Resolve(ask_with_tools)]
) -> str:
    """Asks the model, which may use a tool."""
    [used] = [block for block in opinion.content_as_list if isinstance(block, ToolUseContent)]
    return f"the model called {used.name}({used.input['country']})"


@server.tool()
async def list_places(places: Annotated[ListRootsResult, Resolve(ask_places)]) -> str:
    """Lists places."""
    return names_of(places)


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
    return CallToolResult(content=[TextContent(type="text", text="the kitchen is closed")], is_error=True)


@server.tool()
async def structured() -> Annotated[CallToolResult, Meal]:
    """The meal of the day."""
    return CallToolResult(
        content=[TextContent(type="text", text="fish for 12.5")],
        structured_content=Meal(dish="fish", price=12.5, tags=["fresh", "local"]).model_dump(),
        _meta={"com.example/kitchen": "open"},
    )


@server.completion()
async def complete(reference: object, argument: CompletionArgument, context: object) -> Completion:
    known = {"style": ["warmly", "wittily", "briefly"], "day": ["monday", "tuesday"]}
    return Completion(values=[value for value in known[argument.name] if value.startswith(argument.value)])


def ask_name(message: str) -> InputRequest:
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=Name.model_json_schema()))


def given_name(ctx: Context) -> str | None:
    answer = (ctx.input_responses or {}).get("name")
    content = answer.content if isinstance(answer, ElicitResult) else None
    return Name.model_validate(content).name if content else None


@server.prompt()
async def greeting(style: str, ctx: Context) -> str | InputRequiredResult:
    """Greets."""
    name = given_name(ctx)
    if name is None:
        return InputRequiredResult(input_requests={"name": ask_name("Who is to be greeted?")})
    return f"Greet {name}, {style}."


@server.resource("restaurant://menu", mime_type="text/plain")
async def menu() -> str:
    return "fish, cheese"


@server.resource("restaurant://diary/{day}", mime_type="text/plain")
async def diary(day: str, ctx: Context) -> str | InputRequiredResult:
    name = given_name(ctx)
    if name is None:
        return InputRequiredResult(input_requests={"name": ask_name("Whose diary?")})
    return f"{name} on {day}"


def serve_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
        config = uvicorn.Config(server.streamable_http_app(), log_level="warning")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--stdio"]:
            server.run("stdio")
        case ["--http"]:
            serve_http()
        case _:
            sys.exit("usage: python_server.py --http | --stdio")
