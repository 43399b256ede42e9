"""A server of an earlier revision on standard input and output, as small as the tests need it.

Usage: server.py [VERSION [PROBE [stubborn]]], where PROBE says what becomes of a server/discover:
an error of that code, or `silent`, or `odd` (an answer that cannot be read), or `late` (a proper answer, once the next message is there), or `exit`, or `late exit` (once the next message is there).
A stubborn server does not end when it should.
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

queue = []
notes = []
late = []
last_id = 0
greeted = None
held = []
is_deaf = False


def write(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def read():
    if queue:
        return queue.pop(0)
    return read_line()


def read_line():
    while is_deaf:
        time.sleep(60)
    line = sys.stdin.readline()
    while not line and STUBBORN:
        time.sleep(60)
    if not line:
        sys.exit(0)
    return json.loads(line)


def begin(method, params=None):
    """Asks the client something."""
    global last_id
    last_id += 1
    message = {"id": f"s{last_id}", "method": method}
    if params is not None:
        message["params"] = params
    write(message)
    return message["id"]


def answer_to(*ids):
    """Waits for the answers; everything else is kept for later."""
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
    global is_deaf
    token = params.get("_meta", {}).get("progressToken")
    if name == "meta":
        return text(params.get("_meta", {}))
    if name == "pid":
        return text(str(os.getpid()))
    if name == "greeting":
        return text(greeted)
    if name == "notes":
        return text(notes)
    if name == "form":
        return text(answer_to(form())[0])
    if name == "both":
        ids = [form("one"), form("two")]
        return text(answer_to(*ids))
    if name == "sample":
        params = {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 5}
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
            # The client says something when it has begun to answer.
            queue.append(read_line())
        write({"method": "notifications/cancelled", "params": {"requestId": asked}})
        if name == "withdrawn early":
            # It goes on when the client says anything.
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
    if name == "deafen":
        # A request may be half read.
        os.close(0)
        is_deaf = True
        return text("what did you say?")
    if name == "hasty":
        form()
        return text("never mind")
    if name == "noise":
        print("Loading the noise...", flush=True)
        return text("after the noise")
    if name == "long":
        return text("x" * params["arguments"]["length"])
    if name == "die":
        print("the disk is full", file=sys.stderr, flush=True)
        sys.exit(3)
    raise ValueError(f"no tool {name}")


def handle(message):
    global greeted
    method, params = message.get("method"), message.get("params", {})
    if "id" not in message or method is None:
        notes.append(message)
        return
    if method == "server/discover":
        if PROBE == "late exit":
            read_line()
        if PROBE in ["exit", "late exit"]:
            sys.exit("expected to be greeted")
        if PROBE == "late":
            late.append(message["id"])
        elif PROBE == "odd":
            write({"id": message["id"], "error": "what is that?"})
        elif PROBE != "silent":
            write({"id": message["id"], "error": {"code": int(PROBE), "message": "what is that?"}})
        return
    if late:
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "resultType": "complete"}
        write({"id": late.pop(), "result": result})
    if method == "initialize" and PROBE == "late":
        write({"id": message["id"], "error": {"code": -32601, "message": "only the present revision"}})
        return
    try:
        if method == "initialize":
            greeted = params
            info = {"name": "old", "version": "1"}
            result = {"protocolVersion": VERSION, "capabilities": {"tools": {}, "logging": {}}, "serverInfo": info}
        elif method == "tools/call" and params["name"] == "wait":
            # It is answered only when somebody asks for the notes.
            return
        elif method == "tools/call" and params["name"] == "held":
            # It is answered by what the client answers while another call is under way.
            held.append(message["id"])
            return
        elif method == "tools/call" and params["name"] == "cross":
            asked = form("of the call that is held")
            write({"id": message["id"], "result": text("crossed")})
            write({"id": held.pop(), "result": text(answer_to(asked)[0])})
            return
        elif method == "tools/call" and params["name"] == "beside":
            # The first draft asks like this.
            write({"id": message["id"], "input_requests": {"which": {"method": "roots/list"}}})
            return
        elif method == "tools/call" and params["name"] == "bare":
            write({"id": message["id"]})
            return
        elif method == "tools/call":
            result = call(params["name"], params)
        elif method == "tools/list":
            # These belong to no call.
            notes.extend(answer_to(form("outside of a call"), begin("ping")))
            result = {"tools": [{"name": "form", "inputSchema": {"type": "object"}}]}
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


if STUBBORN:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    handle(read())
