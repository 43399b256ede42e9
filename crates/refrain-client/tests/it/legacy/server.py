"""A small server of a legacy revision over standard input and output.

Usage: server.py [VERSION [PROBE [stubborn] [noisy]]], where PROBE is the response to server/discover: an error code, `silent`, `odd` (an invalid
response), `late` (a valid response after the next message), `exit`, or `late exit` (after the next message). A stubborn server does not exit. A noisy server prints other lines too.
"""

import json
import os
import signal
import sys
import time

VERSION = sys.argv[1] if len(sys.argv) > 1 else "2025-11-25"
PROBE = sys.argv[2] if len(sys.argv) > 2 else "-32601"
TEXT = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "string", "default": "x"}}, "required": ["b"]}

STUBBORN = "stubborn" in sys.argv
NOISY = "noisy" in sys.argv

CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {},
    "completions": {},
    "logging": {},
}

queue = []
subscribed = []
notes = []
late = []
last_id = 0
initialize_params = None
held = []
is_stdin_closed = False


def make_noise():
    """Prints lines that are not messages, some of them in JSON."""
    if NOISY:
        for line in [
            b"Loading...", b"", b"{", b"[1, 2]", b"null", b"\xff\xfe", b"[INFO] ready", b'{"id": 2, "level": "info"}',
            b'{"result": "done"}', b'"text"', b"[]", b'[{"a": 1}]', b'{"method": 5}', b"\x1b[2J",
        ]:
            sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()


def write(message):
    make_noise()
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()
    make_noise()


def read():
    if queue:
        return queue.pop(0)
    return read_line()


def read_line():
    while is_stdin_closed:
        time.sleep(60)
    line = sys.stdin.readline()
    while not line and STUBBORN:
        time.sleep(60)
    if not line:
        sys.exit(0)
    return json.loads(line)


def begin(method, params=None):
    """Sends a request to the client, and returns its id."""
    global last_id
    last_id += 1
    message = {"id": f"s{last_id}", "method": method}
    if params is not None:
        message["params"] = params
    write(message)
    return message["id"]


def answer_to(*ids):
    """Waits for the responses; other messages are queued."""
    found = {}
    while len(found) < len(ids):
        message = read_line()
        if message.get("id") in ids and "method" not in message:
            found[message["id"]] = message.get("result", message.get("error"))
        else:
            queue.append(message)
    return [found[each] for each in ids]


def form(message="Which?"):
    return begin("elicitation/create", {"message": message, "requestedSchema": TEXT})


def text(value):
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


def call(name, params):
    global is_stdin_closed
    token = params.get("_meta", {}).get("progressToken")
    if name == "meta":
        return text(params.get("_meta", {}))
    if name == "pid":
        return text(str(os.getpid()))
    if name == "greeting":
        return text(initialize_params)
    if name == "notes":
        return text(notes)
    if name == "form":
        return text(answer_to(form())[0])
    if name == "both":
        ids = [form("one"), form("two")]
        return text(answer_to(*ids))
    if name in ["sample", "sample tools"]:
        params = {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 5}
        if name == "sample tools":
            params["tools"] = [{"name": "x", "inputSchema": {"type": "object"}}]
        return text(answer_to(begin("sampling/createMessage", params))[0])
    if name == "roots":
        return text(answer_to(begin("roots/list"))[0])
    if name == "odd":
        return text(answer_to(begin("dance/create", {}))[0])
    if name == "endless":
        while True:
            answer_to(form())
    if name in ["withdrawn", "withdrawn early"]:
        asked = form()
        write({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
        if name == "withdrawn early":
            # The client calls another tool when its handler has started.
            queue.append(read_line())
        write({"method": "notifications/cancelled", "params": {"requestId": asked}})
        if name == "withdrawn early":
            # Continues with the next message of the client.
            queue.append(read_line())
        return text("withdrawn")
    if name == "insist":
        answer = answer_to(form())[0]
        if answer.get("action") != "accept":
            raise ValueError("no answer, no result")
        return text(answer)
    if name == "progress":
        for step in range(3):
            write({"method": "notifications/progress", "params": {"progressToken": token, "progress": step}})
        write({"method": "notifications/message", "params": {"level": "info", "data": "logged"}})
        return text("done")
    if name == "stall":
        while True:
            time.sleep(60)
    if name == "close_stdin":
        os.close(0)
        is_stdin_closed = True
        return text("closed")
    if name == "hasty":
        form()
        return text("never mind")
    if name == "noise":
        print("Loading the noise...", flush=True)
        return text("after the noise")
    if name == "change":
        for _ in range(2):
            write({"method": "notifications/tools/list_changed"})
        write({"method": "notifications/prompts/list_changed"})
        for uri in [*subscribed, "file:///other"]:
            write({"method": "notifications/resources/updated", "params": {"uri": uri}})
        return text(subscribed)
    if name == "long":
        return text("x" * params["arguments"]["length"])
    if name == "die":
        print("the disk is full", file=sys.stderr, flush=True)
        sys.exit(3)
    raise ValueError(f"no tool {name}")


def handle(message):
    global initialize_params
    method, params = message.get("method"), message.get("params", {})
    if "id" not in message or method is None:
        notes.append(message)
        return
    if method == "server/discover":
        if PROBE == "late exit":
            read_line()
        if PROBE in ["exit", "late exit"]:
            sys.exit("expected initialize")
        if PROBE == "late":
            late.append(message["id"])
        elif PROBE == "odd":
            write({"id": message["id"], "error": "unknown method"})
        elif PROBE != "silent":
            write({"id": message["id"], "error": {"code": int(PROBE), "message": "unknown method"}})
        return
    if late:
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "resultType": "complete"}
        write({"id": late.pop(), "result": result})
    if method == "initialize" and PROBE == "late":
        write({"id": message["id"], "error": {"code": -32601, "message": "only 2026-07-28"}})
        return
    try:
        if method == "initialize":
            initialize_params = params
            info = {"name": "old", "version": "1"}
            result = {"protocolVersion": VERSION, "capabilities": CAPABILITIES, "serverInfo": info}
        elif method == "tools/call" and params["name"] == "wait":
            # Never answered.
            return
        elif method == "tools/call" and params["name"] == "held":
            # Completed with an answer of the client during another call.
            held.append(message["id"])
            return
        elif method == "tools/call" and params["name"] == "cross":
            asked = form("for the held call")
            write({"id": message["id"], "result": text("crossed")})
            write({"id": held.pop(), "result": text(answer_to(asked)[0])})
            return
        elif method == "tools/call" and params["name"] == "draft_ask":
            # An ask in the form of the first draft.
            write({"id": message["id"], "input_requests": {"which": {"method": "roots/list"}}})
            return
        elif method == "tools/call" and params["name"] == "empty":
            write({"id": message["id"]})
            return
        elif method == "tools/call":
            result = call(params["name"], params)
        elif method == "tools/list":
            # These requests belong to no call.
            notes.extend(answer_to(form("outside of a call"), begin("ping"), begin("roots/list")))
            result = {"tools": [{"name": "form", "inputSchema": {"type": "object"}}]}
        elif method == "ping":
            result = {}
        elif method == "resources/subscribe":
            if params["uri"] == "file:///none":
                raise ValueError("no such resource")
            subscribed.append(params["uri"])
            result = {}
        elif method == "resources/unsubscribe":
            subscribed.remove(params["uri"])
            result = {}
        elif method == "completion/complete":
            values = [json.dumps(params)] + ["more"] * 150
            result = {"completion": {"values": values}}
        elif method == "logging/setLevel":
            notes.append(message)
            result = {}
        else:
            raise KeyError(method)
        write({"id": message["id"], "result": result})
    except ValueError as error:
        write({"id": message["id"], "error": {"code": -32603, "message": str(error)}})
    except KeyError as error:
        write({"id": message["id"], "error": {"code": -32601, "message": str(error)}})


make_noise()
if STUBBORN:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    handle(read())
