"""What is shown and promised about things: pages, suggestions, structured content, icons, caching, headers."""

from __future__ import annotations

import json
from typing import Any

from mcp.types import INVALID_PARAMS, PromptReference, ResourceTemplateReference
from pydantic import BaseModel

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
    pages,
    refused,
    same,
    text_of,
)

ICON = "data:image/svg+xml;base64,"


@check("discover: what is shown of the server")
async def shown(server: Server) -> None:
    async with connected(server, User()) as client:
        info = client.server_info
        same(info.title, "Refrain's conformance server", "title")
        same(info.description, "Everything that the protocol's conformance suite calls.", "description")
        expect(info.icons[0].src.startswith(ICON), f"icons {info.icons!r}")
        same(client.instructions, "Call the tools that the scenario names.", "instructions")
        extensions = {
            "com.example/sample": {"verbose": True},
            "io.modelcontextprotocol/tasks": {},
            "refrain/callId": {},
        }
        same(client.server_capabilities.extensions, extensions, "extensions")


@check("pages: every entry once, in order")
async def every_page(server: Server) -> None:
    async with connected(server, User()) as client:
        for list_page, part, key in (
            (client.list_tools, "tools", "name"),
            (client.list_prompts, "prompts", "name"),
            (client.list_resources, "resources", "uri"),
        ):
            first, second = await pages(list_page), await pages(list_page)
            sizes = [len(getattr(page, part)) for page in first]
            expect(len(sizes) > 1 and set(sizes[:-1]) == {2} and 1 <= sizes[-1] <= 2, f"pages of {part}: {sizes}")
            names = [str(getattr(entry, key)) for page in first for entry in getattr(page, part)]
            same(len(set(names)), len(names), f"different {part}")
            again = [str(getattr(entry, key)) for page in second for entry in getattr(page, part)]
            same(again, names, f"{part} listed again")


@check("pages: a wrong cursor is refused")
async def wrong_cursor(server: Server) -> None:
    async with connected(server, User()) as client:
        for list_page in (
            client.list_tools,
            client.list_prompts,
            client.list_resources,
            client.list_resource_templates,
        ):
            await refused(list_page(cursor="nowhere"), INVALID_PARAMS)


@check("completion: a prompt's argument")
async def complete_prompt(server: Server) -> None:
    async with connected(server, User()) as client:
        expect(client.server_capabilities.completions is not None, "no completions in the capabilities")
        prompt = PromptReference(type="ref/prompt", name="test_prompt_with_arguments")
        found = (await client.complete(prompt, {"name": "arg1", "value": "par"})).completion
        same((found.values, found.total, found.has_more), (["paris", "park", "party"], 3, False), "suggested")
        nothing = (await client.complete(prompt, {"name": "arg2", "value": "par"})).completion
        same(nothing.values, [], "suggested for an argument without suggestions")
        unknown = PromptReference(type="ref/prompt", name="no_such_prompt")
        await refused(client.complete(unknown, {"name": "arg1", "value": ""}), INVALID_PARAMS)


@check("completion: a template's variable")
async def complete_template(server: Server) -> None:
    async with connected(server, User()) as client:
        template = ResourceTemplateReference(type="ref/resource", uri="test://template/{id}/data")
        found = await client.complete(template, {"name": "id", "value": "12"}, {"other": "1"})
        same(found.completion.values, ["123", "124"], "suggested")


@check("structured content")
async def structured(server: Server) -> None:
    async with connected(server, User()) as client:
        tools = {tool.name: tool for tool in await all_tools(client)}
        schema = tools["test_structured_content"].output_schema
        same(schema and schema["properties"]["temperature"]["type"], "number", "type of the temperature")
        # The SDK knows the schema by now, and checks the content against it.
        result = await client.call_tool("test_structured_content", {"town": "Ulm"})
        wanted = {"town": "Ulm", "temperature": 21.5, "conditions": ["sunny", "dry"]}
        same(result.structured_content, wanted, "content")
        same(json.loads(text_of(result)), wanted, "the same as text")


@check("title, icon, annotations and _meta")
async def details(server: Server) -> None:
    async with connected(server, User()) as client:
        tools = {tool.name: tool for tool in await all_tools(client)}
        tool = tools["test_structured_content"]
        same(tool.title, "Structured content", "title")
        expect(bool(tool.icons) and tool.icons[0].src.startswith(ICON), f"icons {tool.icons!r}")
        expect(tool.annotations is not None and tool.annotations.read_only_hint is True, f"{tool.annotations!r}")
        same(tool.meta, {"com.example/group": "samples"}, "_meta")
        resources = {str(resource.uri): resource for resource in await all_resources(client)}
        same(resources["test://static-text"].title, "Static text", "title of a resource")


SHOWN_ICON = {
    "src": "https://example.com/icon.png",
    "mimeType": "image/png",
    "sizes": ["48x48", "96x96"],
    "theme": "dark",
}
SHOWN_ANNOTATIONS = {"audience": ["user", "assistant"], "priority": 0.5, "lastModified": "2026-07-28T12:00:00Z"}


def wire(part: BaseModel) -> dict[str, Any]:
    """What is on the wire of a part of a message."""
    return part.model_dump(mode="json", by_alias=True, exclude_none=True)


@check("all that is shown of a prompt, a resource and a template")
async def everything_shown(server: Server) -> None:
    async with connected(server, User()) as client:
        [prompt] = [prompt for prompt in await all_prompts(client) if prompt.name == "test_shown_prompt"]
        [resource] = [entry for entry in await all_resources(client) if str(entry.uri) == "test://shown"]
        templates = [entry for page in await pages(client.list_resource_templates) for entry in page.resource_templates]
        [template] = [entry for entry in templates if entry.uri_template == "test://shown/{name}"]
        for entry, title, group in (
            (wire(prompt), "A prompt", "prompts"),
            (wire(resource), "A resource", "resources"),
            (wire(template), "A template", "templates"),
        ):
            found = (entry["title"], entry["icons"], entry["_meta"])
            same(found, (title, [SHOWN_ICON], {"com.example/group": group}), title)
        same(resource.size, 12, "size of the resource")
        same(wire(resource)["annotations"], SHOWN_ANNOTATIONS, "annotations of the resource")
        same(wire(template)["annotations"], SHOWN_ANNOTATIONS, "annotations of the template")


@check("annotations of content")
async def annotated(server: Server) -> None:
    async with connected(server, User()) as client:
        text, link = (await client.call_tool("test_annotated_content")).content
        same(wire(text)["annotations"], SHOWN_ANNOTATIONS, "annotations of a text")
        same(wire(link)["annotations"], SHOWN_ANNOTATIONS, "annotations of a link")
        same(link.meta, {"com.example/group": "links"}, "_meta of a link")


@check("caching hints")
async def caching(server: Server) -> None:
    async with connected(server, User()) as client:
        found = {
            "discover": client.session.discover_result,
            "tools": await client.list_tools(),
            "prompts": await client.list_prompts(),
            "resources": await client.list_resources(),
            "templates": await client.list_resource_templates(),
            "text": await client.read_resource("test://static-text"),
            "blob": await client.read_resource("test://static-binary"),
        }
        hints = {name: (result.cache_scope, result.ttl_ms) for name, result in found.items()}
        wanted = dict.fromkeys(found, ("private", 0))
        wanted |= {
            "discover": ("public", 3_600_000),
            "templates": ("public", 3_600_000),
            "text": ("public", 60_000),
        }
        same(hints, wanted, "hints")


@check("x-mcp-header")
async def headers(server: Server) -> None:
    async with connected(server, User()) as client:
        # The SDK mirrors what the listed schema marks; over HTTP the server refuses a call without it.
        await all_tools(client)
        for region in ("eu-west-1", "Zürich, 1. Stock", " padded "):
            result = await client.session.call_tool("test_x_mcp_header", {"region": region, "limit": 42})
            same(final_text(result), f"42 rows from {region}", "text")


@check("x-mcp-header: of a tool that was not listed")
async def headers_unlisted(server: Server) -> None:
    async with connected(server, User()) as client:
        result = await client.call_tool("test_x_mcp_header", {"region": "eu-west-1"})
        same(final_text(result), "0 rows from eu-west-1", "text")
