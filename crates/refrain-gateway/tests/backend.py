"""An MCP server over standard input and output, without any library, for the tests of the gateway. It speaks 2025-06-18.

Its first argument is a file to which it appends lines at its start, for answers, and for calls of `ask`, `effect` and `slow`. When a
file of this name with `.extra` exists, it offers one more tool; while one with `.broken` exists, it exits and does not
start. Further arguments:
  --noise       print lines that are not messages
  --ask-roots   send roots/list after initialization, and return the answer from the tool `roots`
  --babble      print 5,000 lines to both outputs whenever `echo` runs
  --broken      exit at once with an error
  --modern      speak 2026-07-28; the request state of `ask` is valid only in the process that issued it
  --read-only   declare `ask` as read-only
  --changing    ask for another field each time that `ask` runs
  --two-starts  start twice; a further process never finishes its start
  --stubborn    write `pid` and the id to the file, ignore SIGTERM, and do not exit
  --restless    announce changes of the tools without a pause; write `announced` and `listed` to the file
  --odd-lists   offer an invalid resource, and answer requests for the templates and pings with an error
"""

import json
import os
import signal
import sys
import threading
import time

LEDGER = sys.argv[1]
FLAGS = sys.argv[2:]
TOOLS = {
    "echo": {"text": "string"},
    "process": {},
    "ask": {"subject": "string"},
    "ask_twice": {},
    "effect": {},
    "slow": {"seconds": "number"},
    "crash": {},
    "environment": {"name": "string"},
    "roots": {},
    "meta": {},
}

lock = threading.Lock()
answers: dict = {}
answered = threading.Condition()
calls = 0
roots = None
extra = False


def write(message: dict) -> None:
    with lock:
        if "--noise" in FLAGS:
            print("a line that is no message")
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def request(id: str, method: str, params: dict) -> dict:
    write({"id": id, "method": method, "params": params})
    with answered:
        answered.wait_for(lambda: id in answers)
        return answers.pop(id)


def form(message: str, field: str = "name") -> dict:
    schema = {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}
    return {"message": message, "requestedSchema": schema}


def ask(id: str, message: str, field: str = "name") -> dict:
    return request(id, "elicitation/create", form(message, field))


def note(line: str) -> None:
    with open(LEDGER, "a") as ledger:
        ledger.write(line + "\n")


def run(name: str, arguments: dict, meta: dict) -> str:
    global calls
    calls += 1
    token = meta.get("progressToken")
    if name == "meta":
        return json.dumps(meta)
    if name == "echo":
        for output in (sys.stdout, sys.stderr) if "--babble" in FLAGS else ():
            print("babble\n" * 5000, end="", file=output, flush=True)
        return arguments["text"]
    if name == "process":
        return json.dumps({"pid": os.getpid(), "calls": calls})
    if name == "ask":
        note("ask")
        with open(LEDGER) as ledger:
            runs = ledger.readlines().count("ask\n")
        field = "nickname" if "--changing" in FLAGS and runs > 1 else "name"
        answer = ask(f"ask-{calls}", f"Who wants {arguments['subject']}?", field)
        return f"{arguments['subject']} for {answer['content'][field]}" if answer["action"] == "accept" else answer["action"]
    if name == "ask_twice":
        note("ask")
        first = ask(f"first-{calls}", "Who is first?")["content"]["name"]
        second = ask(f"second-{calls}", f"Who comes after {first}?")["content"]["name"]
        return f"{first}, {second}"
    if name == "effect":
        note("effect")
        return "done"
    if name == "slow":
        note("slow")
        steps = 4
        for step in range(steps):
            time.sleep(arguments["seconds"] / steps)
            if token is not None:
                write({"method": "notifications/progress", "params": {"progressToken": token, "progress": step + 1, "total": steps}})
        return "served"
    if name == "crash":
        print("the backend crashes", file=sys.stderr, flush=True)
        os._exit(7)
    if name == "environment":
        return os.environ.get(arguments["name"], "unset")
    if name == "roots":
        return json.dumps(roots)
    raise ValueError(name)


def ask_by_round(id: object, params: dict) -> None:
    subject, state = params["arguments"]["subject"], params.get("requestState")
    if state is None:
        note("ask")
        ask = {"method": "elicitation/create", "params": form(f"Who wants {subject}?")}
        result = {"resultType": "input_required", "inputRequests": {"who": ask}, "requestState": str(os.getpid())}
        write({"id": id, "result": result})
    elif state != str(os.getpid()):
        write({"id": id, "error": {"code": -32602, "message": "requestState of another process"}})
    else:
        name = params["inputResponses"]["who"]["content"]["name"]
        write({"id": id, "result": {"content": [{"type": "text", "text": f"{subject} for {name}"}], "resultType": "complete"}})


def call(id: object, params: dict) -> None:
    if "--modern" in FLAGS and params["name"] == "ask":
        return ask_by_round(id, params)
    text = run(params["name"], params.get("arguments", {}), params.get("_meta", {}))
    write({"id": id, "result": {"content": [{"type": "text", "text": text}], "x-unknown": True, "_meta": {"example/pid": os.getpid()}}})


def list_tools() -> list:
    tools = [
        {
            "name": name,
            "description": f"The tool {name}.",
            "inputSchema": {"type": "object", "properties": {key: {"type": kind} for key, kind in fields.items()}},
            "x-unknown": {"kept": True},
        }
        for name, fields in TOOLS.items()
    ]
    if "--read-only" in FLAGS:
        tools[list(TOOLS).index("ask")]["annotations"] = {"readOnlyHint": True}
    if extra:
        tools.append({"name": "extra", "inputSchema": {"type": "object"}})
    return tools


def receive(message: dict) -> None:
    global roots
    method, id = message.get("method"), message.get("id")
    if method is None and id == "roots":
        roots = message["result"]["roots"]
    elif method is None:
        note("answered")
        with answered:
            answers[id] = message.get("result", {})
            answered.notify_all()
    elif method == "server/discover" and "--modern" in FLAGS:
        discovered = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        write({"id": id, "result": discovered})
    elif method == "initialize":
        capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
        server = {"name": "tested", "version": "1"}
        write({"id": id, "result": {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": server}})
    elif method == "notifications/initialized":
        if "--ask-roots" in FLAGS:
            write({"id": "roots", "method": "roots/list"})
    elif method == "notifications/cancelled":
        note("cancelled")
    elif method == "tools/list":
        if "--restless" in FLAGS:
            note("listed")
        write({"id": id, "result": {"tools": list_tools()}})
    elif method == "tools/call":
        threading.Thread(target=call, args=(id, message["params"]), daemon=True).start()
    elif method == "resources/list":
        resources = [{"uri": "test://note", "name": "note"}]
        if "--odd-lists" in FLAGS:
            resources.append({"uri": "no scheme", "name": "odd"})
        write({"id": id, "result": {"resources": resources}})
    elif method == "resources/templates/list" and "--odd-lists" in FLAGS:
        write({"id": id, "error": {"code": -32603, "message": "no database"}})
    elif method == "resources/templates/list":
        write({"id": id, "result": {"resourceTemplates": [{"uriTemplate": "test://files/{+path}", "name": "files"}]}})
    elif method == "resources/read":
        uri = message["params"]["uri"]
        write({"id": id, "result": {"contents": [{"uri": uri, "text": f"contents of {uri}"}]}})
    elif method == "resources/subscribe":
        write({"id": id, "result": {}})
        write({"method": "notifications/resources/updated", "params": message["params"]})
    elif method == "ping" and "--odd-lists" not in FLAGS:
        write({"id": id, "result": {}})
    elif id is not None:
        write({"id": id, "error": {"code": -32601, "message": f"unknown method {method}"}})


def watch() -> None:
    global extra
    while True:
        time.sleep(0.05)
        if os.path.exists(LEDGER + ".broken"):
            os._exit(1)
        if not extra and os.path.exists(LEDGER + ".extra"):
            extra = True
            write({"method": "notifications/tools/list_changed"})


def announce() -> None:
    while True:
        time.sleep(0.01)
        note("announced")
        write({"method": "notifications/tools/list_changed"})


if "--broken" in FLAGS or os.path.exists(LEDGER + ".broken"):
    sys.exit("the backend is broken")
note("started")
if "--two-starts" in FLAGS:
    with open(LEDGER) as ledger:
        if ledger.readlines().count("started\n") > 2:
            time.sleep(3600)
threading.Thread(target=watch, daemon=True).start()
if "--restless" in FLAGS:
    threading.Thread(target=announce, daemon=True).start()
if "--stubborn" in FLAGS:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(f"pid {os.getpid()}")
for line in sys.stdin:
    receive(json.loads(line))
while "--stubborn" in FLAGS:
    time.sleep(1)
