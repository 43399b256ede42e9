"""Calls that are done in one round: what is listed, what is answered, progress, logs and cancelling."""

from __future__ import annotations

import base64

import anyio
from mcp.types import (
    INVALID_PARAMS,
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

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
    refused,
    same,
    text_of,
)

PNG = b"\x89PNG\r\n"
WAV = b"RIFF"


def is_picture(block: object) -> bool:
    return (
        isinstance(block, ImageContent)
        and block.mime_type == "image/png"
        and base64.b64decode(block.data).startswith(PNG)
    )


@check("discover")
async def discover(server: Server) -> None:
    async with connected(server, User()) as client:
        info = client.server_info
        expect(info is not None and info.name == "refrain-conformance" and bool(info.version), f"server {info!r}")
        capabilities = client.server_capabilities
        for part in ("tools", "prompts", "resources"):
            expect(getattr(capabilities, part) is not None, f"no {part} in {capabilities!r}")


@check("tools/list")
async def list_tools(server: Server) -> None:
    async with connected(server, User()) as client:
        tools = await all_tools(client)
        again = await all_tools(client)
        same([tool.name for tool in again], [tool.name for tool in tools], "listed again")
        same(tools[0].name, "test_simple_text", "the first tool")
        expect(all(tool.description for tool in tools), "a tool has no description")
        by_name = {tool.name: tool for tool in tools}
        same(len(by_name), len(tools), "different names")
        schema = by_name["test_waiting"].input_schema
        same(sorted(schema["required"]), ["fate", "key"], "required arguments")


@check("tools/call: text")
async def text(server: Server) -> None:
    async with connected(server, User()) as client:
        result = await client.call_tool("test_simple_text")
        same(final_text(result), "This is a simple text response for testing.", "text")


@check("tools/call: image")
async def image(server: Server) -> None:
    async with connected(server, User()) as client:
        [block] = (await client.call_tool("test_image_content")).content
        expect(is_picture(block), f"{block!r}")


@check("tools/call: audio")
async def audio(server: Server) -> None:
    async with connected(server, User()) as client:
        [block] = (await client.call_tool("test_audio_content")).content
        expect(isinstance(block, AudioContent) and block.mime_type == "audio/wav", f"{block!r}")
        expect(base64.b64decode(block.data).startswith(WAV), "not a WAV file")


@check("tools/call: embedded resource")
async def embedded(server: Server) -> None:
    async with connected(server, User()) as client:
        [block] = (await client.call_tool("test_embedded_resource")).content
        expect(isinstance(block, EmbeddedResource), f"{block!r}")
        same(str(block.resource.uri), "test://embedded-resource", "uri")
        expect(isinstance(block.resource, TextResourceContents), f"{block.resource!r}")
        same(block.resource.text, "This is an embedded resource content.", "text")


@check("tools/call: resource link")
async def link(server: Server) -> None:
    async with connected(server, User()) as client:
        [block] = (await client.call_tool("test_resource_link")).content
        expect(isinstance(block, ResourceLink), f"{block!r}")
        found = (str(block.uri), block.name, block.title, block.mime_type, block.size)
        same(found, ("test://static-text", "static_text", "A text", "text/plain", 48), "link")


@check("tools/call: mixed contents")
async def mixed(server: Server) -> None:
    async with connected(server, User()) as client:
        content = (await client.call_tool("test_multiple_content_types")).content
        same([type(block) for block in content], [TextContent, ImageContent, EmbeddedResource], "blocks")


@check("tools/call: error of the tool")
async def tool_error(server: Server) -> None:
    async with connected(server, User()) as client:
        result = await client.call_tool("test_error_handling")
        expect(result.is_error is True, "is_error is not set")
        same(text_of(result), "This tool intentionally returns an error for testing", "text")


@check("tools/call: unknown tool")
async def unknown_tool(server: Server) -> None:
    async with connected(server, User()) as client:
        await refused(client.call_tool("no_such_tool"), INVALID_PARAMS)


@check("tools/call: wrong arguments")
async def wrong_arguments(server: Server) -> None:
    async with connected(server, User()) as client:
        result = await client.call_tool("test_waiting", {"key": 5})
        expect(result.is_error is True, f"answered {text_of(result)!r}")


@check("tools/call: many at once")
async def at_once(server: Server) -> None:
    async with connected(server, User()) as client:
        answers: dict[int, str] = {}

        async def call(number: int) -> None:
            arguments = {"name": f"caller {number}", "phone": str(number)}
            result = await client.call_tool("json_schema_2020_12_tool", arguments | {"contactMethod": "phone"})
            answers[number] = final_text(result)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(call, number)
        same(answers, {number: f"caller {number}: {number}" for number in range(20)}, "answers")


@check("progress and logs while the call runs")
async def streaming(server: Server) -> None:
    user = User()
    seen: list[tuple[float, float | None, str | None]] = []

    async def note(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))
        if done == 5:
            reached.set()

    reached = anyio.Event()
    arguments = {"key": "python, streaming"}
    async with connected(server, user, log_level="info") as client, anyio.create_task_group() as group:

        async def release() -> None:
            await reached.wait()
            await user.has_logged(5)
            await client.call_tool("test_release", arguments)

        group.start_soon(release)
        result = await client.call_tool("test_stream", arguments, progress_callback=note)
        same(final_text(result), "Released.", "text")
    steps = range(1, 6)
    same(seen, [(step, 5, f"step {step}") for step in steps], "progress")
    same(user.logged, [("info", f"step {step}") for step in steps], "logged")


@check("progress: none without a token")
async def no_progress(server: Server) -> None:
    user = User()
    async with connected(server, user) as client:
        result = await client.call_tool("test_tool_with_progress")
        same(final_text(result), "The work is done.", "text")
        same(user.notifications, [], "notifications")


LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


@check("logs from a level on")
async def logs(server: Server) -> None:
    for first, level in enumerate(LEVELS):
        user = User()
        async with connected(server, user, log_level=level) as client:
            await client.call_tool("test_log_levels")
            same(user.logged, [(name, name) for name in LEVELS[first:]], f"logged from {level} on")


@check("logs: none without a level")
async def no_logs(server: Server) -> None:
    user = User()
    async with connected(server, user) as client:
        await client.call_tool("test_log_levels")
        await client.call_tool("test_logging_tool")
        same(user.notifications, [], "notifications")


async def cancel(server: Server, key: str, *, with_progress: bool) -> None:
    reached = anyio.Event()

    async def note(done: float, total: float | None, message: str | None) -> None:
        reached.set()

    async with connected(server, User()) as client, anyio.create_task_group() as group:
        scope = anyio.CancelScope()

        async def call() -> None:
            with scope:
                await client.call_tool("test_wait", {"key": key}, progress_callback=note if with_progress else None)

        group.start_soon(call)
        result = await client.call_tool("test_waiting", {"key": key, "fate": "running"})
        same(final_text(result), "Running", "before")
        if with_progress:
            await reached.wait()
        scope.cancel()
        result = await client.call_tool("test_waiting", {"key": key, "fate": "dropped"})
        same(final_text(result), "Dropped", "after")


@check("cancel a call that has sent something")
async def cancel_streaming(server: Server) -> None:
    await cancel(server, "python, cancelled while streaming", with_progress=True)


@check("cancel a call that has sent nothing")
async def cancel_silent(server: Server) -> None:
    await cancel(server, "python, cancelled while silent", with_progress=False)


@check("prompts/list")
async def list_prompts(server: Server) -> None:
    async with connected(server, User()) as client:
        prompts = {prompt.name: prompt for prompt in await all_prompts(client)}
        expect(all(prompt.description for prompt in prompts.values()), "a prompt has no description")
        arguments = prompts["test_prompt_with_arguments"].arguments or []
        found = [(argument.name, argument.required, argument.description) for argument in arguments]
        same(found, [("arg1", True, "First test argument."), ("arg2", True, "Second test argument.")], "arguments")


@check("prompts/get: text")
async def prompt_text(server: Server) -> None:
    async with connected(server, User()) as client:
        [message] = (await client.get_prompt("test_simple_prompt")).messages
        same((message.role, message.content.text), ("user", "This is a simple prompt for testing."), "message")


@check("prompts/get: arguments")
async def prompt_arguments(server: Server) -> None:
    async with connected(server, User()) as client:
        arguments = {"arg1": "one", "arg2": "two"}
        [message] = (await client.get_prompt("test_prompt_with_arguments", arguments)).messages
        same(message.content.text, "Prompt with arguments: arg1='one', arg2='two'", "text")


@check("prompts/get: missing argument")
async def prompt_missing_argument(server: Server) -> None:
    async with connected(server, User()) as client:
        await refused(client.get_prompt("test_prompt_with_arguments", {"arg1": "one"}), INVALID_PARAMS)


@check("prompts/get: embedded resource")
async def prompt_embedded(server: Server) -> None:
    async with connected(server, User()) as client:
        arguments = {"resourceUri": "test://any"}
        first, second = (await client.get_prompt("test_prompt_with_embedded_resource", arguments)).messages
        expect(isinstance(first.content, EmbeddedResource), f"{first.content!r}")
        same(str(first.content.resource.uri), "test://any", "uri")
        same(second.content.text, "Please process the embedded resource above.", "text")


@check("prompts/get: image")
async def prompt_image(server: Server) -> None:
    async with connected(server, User()) as client:
        first, second = (await client.get_prompt("test_prompt_with_image")).messages
        expect(is_picture(first.content), f"{first.content!r}")
        same(second.content.text, "Please analyze the image above.", "text")


@check("prompts/get: unknown prompt")
async def unknown_prompt(server: Server) -> None:
    async with connected(server, User()) as client:
        await refused(client.get_prompt("no_such_prompt"), INVALID_PARAMS)


@check("resources/list")
async def list_resources(server: Server) -> None:
    async with connected(server, User()) as client:
        resources = {str(entry.uri): entry for entry in await all_resources(client)}
        expect({"test://static-text", "test://static-binary"} <= resources.keys(), f"listed {sorted(resources)}")
        same(resources["test://static-binary"].mime_type, "image/png", "media type")


@check("resources/templates/list")
async def list_templates(server: Server) -> None:
    async with connected(server, User()) as client:
        templates = (await client.list_resource_templates()).resource_templates
        expect("test://template/{id}/data" in [entry.uri_template for entry in templates], f"listed {templates!r}")


@check("resources/read: text")
async def read_text(server: Server) -> None:
    async with connected(server, User()) as client:
        [contents] = (await client.read_resource("test://static-text")).contents
        expect(isinstance(contents, TextResourceContents), f"{contents!r}")
        found = (str(contents.uri), contents.mime_type, contents.text)
        wanted = ("test://static-text", "text/plain", "This is the content of the static text resource.")
        same(found, wanted, "contents")


@check("resources/read: blob")
async def read_blob(server: Server) -> None:
    async with connected(server, User()) as client:
        [contents] = (await client.read_resource("test://static-binary")).contents
        expect(isinstance(contents, BlobResourceContents), f"{contents!r}")
        expect(base64.b64decode(contents.blob).startswith(PNG), "not a PNG file")


@check("resources/read: template")
async def read_template(server: Server) -> None:
    async with connected(server, User()) as client:
        [contents] = (await client.read_resource("test://template/123/data")).contents
        expect(isinstance(contents, TextResourceContents) and "Data for ID: 123" in contents.text, f"{contents!r}")


@check("resources/read: unknown resource")
async def read_unknown(server: Server) -> None:
    async with connected(server, User()) as client:
        error = await refused(client.read_resource("test://nowhere"), INVALID_PARAMS)
        same(error.data, {"uri": "test://nowhere"}, "data")
