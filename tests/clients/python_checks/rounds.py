"""Calls that ask before they answer."""

from __future__ import annotations

from mcp.types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ElicitResult,
    InputRequiredResult,
    TextResourceContents,
)

from .support import (
    MODEL_ANSWER,
    ROOTS,
    Server,
    User,
    check,
    connected,
    expect,
    final_text,
    refused,
    same,
    text_of,
)

ROUND = "test_input_required_result_"


@check("ask: a form")
async def form(server: Server) -> None:
    user = User(user_name={"name": "Alice"})
    async with connected(server, user) as client:
        result = await client.call_tool(f"{ROUND}elicitation")
        same(final_text(result), "Hello, Alice!", "text")
        same(user.messages, ["What is your name?"], "asked")
        same(user.forms[0]["properties"], {"name": {"type": "string"}}, "fields")
        same(user.forms[0]["required"], ["name"], "required")


SIGN_UP = {
    "address": "alice@example.com",
    "age": 33,
    "height": 1.75,
    "public": False,
    "howOften": "daily",
    "topics": ["fixes", "news"],
}


@check("ask: a field of every kind")
async def every_field(server: Server) -> None:
    user = User(sign_up=SIGN_UP)
    async with connected(server, user) as client:
        result = await client.call_tool("test_form")
        same(final_text(result), "alice@example.com, 33, 1.75, false, Daily, [Fixes, News]", "text")
        fields = user.forms[0]["properties"]
        types = [fields[name]["type"] for name in SIGN_UP]
        same(types, ["string", "integer", "number", "boolean", "string", "array"], "types")


@check("ask: again, with the reason")
async def again(server: Server) -> None:
    user = User(sign_up=[SIGN_UP | {"age": 200}, SIGN_UP])
    async with connected(server, user) as client:
        result = await client.call_tool("test_form")
        expect(final_text(result).startswith("alice@example.com, 33"), f"answered {text_of(result)!r}")
        same(user.asked, ["sign_up", "sign_up"], "asked")
        expect("not accepted" in user.messages[1], f"asked again with {user.messages[1]!r}")


@check("ask: declined")
async def declined(server: Server) -> None:
    user = User(user_name="decline")
    async with connected(server, user) as client:
        same(final_text(await client.call_tool("test_outcome")), "declined", "text")
        same(user.asked, ["user_name"], "asked")


@check("ask: cancelled")
async def cancelled(server: Server) -> None:
    user = User(user_name="cancel")
    async with connected(server, user) as client:
        same(final_text(await client.call_tool("test_outcome")), "cancelled", "text")
        same(user.asked, ["user_name"], "asked")


@check("ask: a decline ends the call")
async def decline_ends(server: Server) -> None:
    user = User(user_name="decline")
    async with connected(server, user) as client:
        result = await client.call_tool(f"{ROUND}elicitation")
        expect(result.is_error is True and bool(text_of(result)), f"answered {result!r}")
        same(user.asked, ["user_name"], "asked")


@check("ask: a URL")
async def url(server: Server) -> None:
    user = User(consent={})
    async with connected(server, user) as client:
        same(final_text(await client.call_tool("test_url")), "The page was opened.", "text")
        same(user.urls, ["https://example.com/consent"], "opened")


@check("ask: the model")
async def sampling(server: Server) -> None:
    user = User()
    async with connected(server, user) as client:
        same(final_text(await client.call_tool(f"{ROUND}sampling")), MODEL_ANSWER, "text")
        same(user.sampled, ["What is the capital of France?"], "sampled")


@check("ask: the roots")
async def roots(server: Server) -> None:
    async with connected(server, User()) as client:
        result = await client.call_tool(f"{ROUND}list_roots")
        same(final_text(result), f"Your roots: {', '.join(ROOTS)}", "text")


@check("ask: three things in one round")
async def three(server: Server) -> None:
    user = User(user_name={"name": "Alice"})
    async with connected(server, user) as client:
        result = await client.call_tool(f"{ROUND}multiple_inputs")
        same(final_text(result), f"Alice: {MODEL_ANSWER} Your roots: {', '.join(ROOTS)}", "text")
        same(sorted(user.asked), ["client_roots", "greeting", "user_name"], "asked")


@check("ask: one thing after the other")
async def in_turn(server: Server) -> None:
    user = User(step1={"name": "Alice"}, step2={"color": "blue"})
    async with connected(server, user) as client:
        same(final_text(await client.call_tool(f"{ROUND}multi_round")), "Alice likes blue.", "text")
        same(user.asked, ["step1", "step2"], "asked")


@check("ask: a step before it is kept")
async def step(server: Server) -> None:
    user = User(confirm={"ok": True})
    async with connected(server, user) as client:
        same(final_text(await client.call_tool(f"{ROUND}request_state")), "state-ok, confirmed: true", "text")


@check("ask: after progress")
async def after_progress(server: Server) -> None:
    seen: list[float] = []

    async def note(done: float, total: float | None, message: str | None) -> None:
        seen.append(done)

    async with connected(server, User(user_name={"name": "Alice"})) as client:
        result = await client.call_tool("test_streaming_elicitation", progress_callback=note)
        same(final_text(result), "Hello, Alice!", "text")
        # The first round's progress is not sent again by the second.
        same(seen, [1, 2], "progress")


@check("ask: from a prompt")
async def prompt(server: Server) -> None:
    user = User(user_context={"context": "a rainy day"})
    async with connected(server, user) as client:
        [message] = (await client.get_prompt(f"{ROUND}prompt")).messages
        same(message.content.text, "Use this context: a rainy day", "text")


@check("ask: from a resource")
async def resource(server: Server) -> None:
    async with connected(server, User(reader={"name": "Alice"})) as client:
        [contents] = (await client.read_resource("test://asking")).contents
        expect(isinstance(contents, TextResourceContents), f"{contents!r}")
        same(contents.text, "This was written for Alice.", "text")


@check("ask: what the client cannot be asked")
async def unsupported(server: Server) -> None:
    async with connected(server, User(), sampling_callback=None) as client:
        error = await refused(client.call_tool("test_missing_capability"), MISSING_REQUIRED_CLIENT_CAPABILITY)
        same(error.data, {"requiredCapabilities": {"sampling": {}}}, "data")


@check("ask: only what the client can be asked")
async def only_supported(server: Server) -> None:
    user = User()
    async with connected(server, user, elicitation_callback=None) as client:
        text = final_text(await client.call_tool(f"{ROUND}capabilities"))
        same(text, f"greeting: {MODEL_ANSWER}; roots: {', '.join(ROOTS)}", "text")


@check("rounds by hand")
async def by_hand(server: Server) -> None:
    async with connected(server, User()) as client:
        call = client.session.call_tool
        first = await call(f"{ROUND}multi_round", allow_input_required=True)
        expect(isinstance(first, InputRequiredResult), f"answered {first!r}")
        same(list(first.input_requests or {}), ["step1"], "asked")
        answers = {"step1": ElicitResult(action="accept", content={"name": "Alice"})}
        second = await call(
            f"{ROUND}multi_round", input_responses=answers, request_state=first.request_state, allow_input_required=True
        )
        expect(isinstance(second, InputRequiredResult), f"answered {second!r}")
        same(list(second.input_requests or {}), ["step2"], "asked")
        expect(second.request_state != first.request_state, "the state is the same in both rounds")
        # The same state twice: the flow goes on from there both times.
        for color in ("blue", "green"):
            answers = {"step2": ElicitResult(action="accept", content={"color": color})}
            last = await call(f"{ROUND}multi_round", input_responses=answers, request_state=second.request_state)
            same(final_text(last), f"Alice likes {color}.", "text")


@check("a changed state is refused")
async def tampered(server: Server) -> None:
    async with connected(server, User()) as client:
        call = client.session.call_tool
        first = await call(f"{ROUND}tampered_state", allow_input_required=True)
        expect(isinstance(first, InputRequiredResult), f"answered {first!r}")
        answers = {"confirm": ElicitResult(action="accept", content={"ok": True})}
        state = f"{first.request_state}-TAMPERED"
        await refused(call(f"{ROUND}tampered_state", input_responses=answers, request_state=state), INVALID_PARAMS)
        # Nor does it fit another call.
        await refused(call(f"{ROUND}elicitation", request_state=first.request_state), INVALID_PARAMS)
