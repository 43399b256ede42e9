"""Subscriptions: who listens is told of what changes while the server runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import anyio
from mcp import Client
from mcp.client.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged

from .support import (
    Server,
    User,
    all_prompts,
    all_resources,
    all_tools,
    check,
    connected,
    expect,
    final_text,
    same,
)


async def trigger(client: Client, what: str, **arguments: Any) -> str:
    return final_text(await client.call_tool(f"test_trigger_{what}", arguments))


async def change_is_announced_and_listed(
    server: Server, what: str, name: str, event: object, names: Callable[[Client], Any], **wanted: bool
) -> None:
    """Has something added and removed, and sees each change as an event and in the list."""
    async with connected(server, User()) as client, client.listen(**wanted) as subscription:
        honored = subscription.honored.model_dump(exclude_none=True)
        same(honored, wanted, "honored")
        for outcome in ("added", "removed"):
            same(await trigger(client, what), outcome, what)
            same(await anext(subscription), event, "told")
            same(name in await names(client), outcome == "added", f"{name} is listed")


@check("subscriptions: tools")
async def tools(server: Server) -> None:
    async def names(client: Client) -> list[str]:
        return [tool.name for tool in await all_tools(client)]

    await change_is_announced_and_listed(
        server, "tool_change", "test_added_tool", ToolsListChanged(), names, tools_list_changed=True
    )


@check("subscriptions: prompts")
async def prompts(server: Server) -> None:
    async def names(client: Client) -> list[str]:
        return [prompt.name for prompt in await all_prompts(client)]

    await change_is_announced_and_listed(
        server, "prompt_change", "test_added_prompt", PromptsListChanged(), names, prompts_list_changed=True
    )


@check("subscriptions: resources")
async def resources(server: Server) -> None:
    async def names(client: Client) -> list[str]:
        return [str(resource.uri) for resource in await all_resources(client)]

    await change_is_announced_and_listed(
        server, "resource_change", "test://added", ResourcesListChanged(), names, resources_list_changed=True
    )


@check("subscriptions: updates of a resource")
async def updates(server: Server) -> None:
    uri = "test://static-text"
    async with connected(server, User()) as client, client.listen(resource_subscriptions=[uri]) as subscription:
        same(subscription.honored.resource_subscriptions, [uri], "honored")
        # Of another resource nothing is told.
        await trigger(client, "resource_update", uri="test://static-binary")
        await trigger(client, "resource_update", uri=uri)
        same(await anext(subscription), ResourceUpdated(uri=uri), "told")


@check("subscriptions: only what was asked for")
async def filtered(server: Server) -> None:
    user = User()
    async with connected(server, user) as client, client.listen(prompts_list_changed=True) as subscription:
        for what in ("tool_change", "resource_change", "prompt_change") * 2:
            await trigger(client, what)
        same(await anext(subscription), PromptsListChanged(), "told")
        # The handler of all messages sees whatever else the server might have sent.
        same(set(user.notifications), {"notifications/prompts/list_changed"}, "notifications")


@check("subscriptions: two at once")
async def two(server: Server) -> None:
    async with (
        connected(server, User()) as client,
        client.listen(tools_list_changed=True) as first,
        client.listen(prompts_list_changed=True) as second,
    ):
        expect(first.subscription_id != second.subscription_id, "both have one id")
        for _ in range(2):
            await trigger(client, "tool_change")
            await trigger(client, "prompt_change")
            same(await anext(first), ToolsListChanged(), "told the first")
            same(await anext(second), PromptsListChanged(), "told the second")


@check("subscriptions: ended by the client")
async def ended_by_client(server: Server) -> None:
    async with connected(server, User()) as client:
        async with client.listen(tools_list_changed=True):
            await client.call_tool("test_subscriptions", {"count": 1})
        result = await client.call_tool("test_subscriptions", {"count": 0})
        same(final_text(result), "0 are open", "subscriptions")


# The last check: over HTTP it takes the server from all others.
@check("subscriptions: ended by the server")
async def ended_by_server(server: Server) -> None:
    async with connected(server, User()) as client, client.listen(tools_list_changed=True) as subscription:
        process = int(final_text(await client.call_tool("test_process_id")))
        os.kill(process, signal.SIGTERM)
        # An end that is not a clean one raises.
        with anyio.fail_after(60):
            same([event async for event in subscription], [], "told")
