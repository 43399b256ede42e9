"""What every check needs: the list of checks, the person behind the client, and a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    ListRootsResult,
    Prompt,
    Resource,
    Root,
    TextContent,
    Tool,
)

PROTOCOL_VERSION = "2026-07-28"
SECONDS_FOR_ONE_ROUND = 60
MODEL_ANSWER = "Paris, says the model."
ROOTS = ["file:///srv/one", "file:///srv/two"]

Server = str | StdioServerParameters


class CheckFailed(Exception):
    """A check that did not hold; its text is the reason."""


def expect(holds: bool, reason: str) -> None:
    if not holds:
        raise CheckFailed(reason)


def same(found: object, wanted: object, what: str) -> None:
    expect(found == wanted, f"{what}: {found!r}, not {wanted!r}")


class User:
    """The person and the model behind the client. Answers by the ask's key, and remembers what was asked.

    An answer is what the fields are filled in with, or "decline", or "cancel"; a list of these answers
    one ask after the other.
    """

    def __init__(self, **answers: Any) -> None:
        self.answers = {key: answer if isinstance(answer, list) else [answer] for key, answer in answers.items()}
        self.asked: list[str] = []
        self.messages: list[str] = []
        self.forms: list[dict[str, Any]] = []
        self.urls: list[str] = []
        self.sampled: list[str] = []
        self.logged: list[tuple[str, Any]] = []
        self.notifications: list[str] = []
        self._logged_more = anyio.Event()

    async def elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        key = str(context.request_id)
        self.asked.append(key)
        self.messages.append(params.message)
        expect(bool(self.answers.get(key)), f"asked {key!r}, which has no answer left")
        answer = self.answers[key].pop(0)
        if isinstance(answer, str):
            return ElicitResult(action=answer)
        if isinstance(params, ElicitRequestURLParams):
            self.urls.append(params.url)
            return ElicitResult(action="accept")
        self.forms.append(params.requested_schema)
        return ElicitResult(action="accept", content=answer)

    async def sample(self, context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
        self.asked.append(str(context.request_id))
        blocks = [block for message in params.messages for block in message.content_as_list]
        self.sampled.append(" ".join(block.text for block in blocks if isinstance(block, TextContent)))
        return CreateMessageResult(
            role="assistant",
            content=TextContent(type="text", text=MODEL_ANSWER),
            model="scripted",
            stop_reason="endTurn",
        )

    async def roots(self, context: ClientRequestContext) -> ListRootsResult:
        self.asked.append(str(context.request_id))
        return ListRootsResult(roots=[Root(uri=uri) for uri in ROOTS])

    async def log(self, params: Any) -> None:
        self.logged.append((params.level, params.data))
        self._logged_more.set()

    async def has_logged(self, count: int) -> None:
        """Waits for so many log messages."""
        while len(self.logged) < count:
            self._logged_more = anyio.Event()
            await self._logged_more.wait()

    async def message(self, message: Any) -> None:
        self.notifications.append(getattr(message, "method", repr(message)))


@asynccontextmanager
async def connected(server: Server, user: User, **options: Any) -> AsyncIterator[Client]:
    """A client with everything it can be asked, unless an option says otherwise."""
    settings: dict[str, Any] = {
        "elicitation_callback": user.elicit,
        "sampling_callback": user.sample,
        "list_roots_callback": user.roots,
        "logging_callback": user.log,
        "message_handler": user.message,
        "read_timeout_seconds": SECONDS_FOR_ONE_ROUND,
    }
    async with Client(server, **(settings | options)) as client:
        # The SDK falls back to the legacy handshake without a word.
        same(client.protocol_version, PROTOCOL_VERSION, "negotiated")
        yield client


Check = Callable[[Server], Awaitable[None]]
CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    """Puts a function into the list of checks, which are done in the order they are written in."""

    def put(function: Check) -> Check:
        expect(name not in CHECKS, f"two checks are called {name!r}")
        CHECKS[name] = function
        return function

    return put


MOST_PAGES = 100


async def pages(list_page: Callable[..., Awaitable[Any]]) -> list[Any]:
    """Every page of a list, from the first on."""
    found = [await list_page()]
    while found[-1].next_cursor is not None:
        expect(len(found) < MOST_PAGES, f"the list has more than {MOST_PAGES} pages")
        found.append(await list_page(cursor=found[-1].next_cursor))
    return found


async def all_tools(client: Client) -> list[Tool]:
    return [tool for page in await pages(client.list_tools) for tool in page.tools]


async def all_prompts(client: Client) -> list[Prompt]:
    return [prompt for page in await pages(client.list_prompts) for prompt in page.prompts]


async def all_resources(client: Client) -> list[Resource]:
    return [resource for page in await pages(client.list_resources) for resource in page.resources]


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def final_text(result: CallToolResult) -> str:
    """The text of a result that is none of an error."""
    text = text_of(result)
    expect(not result.is_error, f"ended with an error: {text!r}")
    return text


async def refused(call: Awaitable[Any], code: int) -> MCPError:
    """The error a call ends with, which must have this code."""
    try:
        result = await call
    except MCPError as error:
        same(error.code, code, f"error {error.message!r}")
        return error
    raise CheckFailed(f"answered {result!r}, not error {code}")


def reason_of(error: BaseException) -> str:
    """The innermost reason: a callback's error arrives wrapped in exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, CheckFailed):
        return str(error)
    return f"{type(error).__name__}: {error}"
