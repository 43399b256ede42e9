"""A server of the first draft over standard input and output, with one tool that becomes a task and asks.

Usage: draft.py yes|no, where `yes` makes the server reject answers.
"""

import json
import sys

REJECTS = sys.argv[1] == "yes"
META = "io.modelcontextprotocol/related-task"
FORM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Which?",
        "requestedSchema": {"type": "object", "properties": {"b": {"type": "string"}}},
    },
}

answer = None
polls = 0
late = None


def write(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def task(status):
    return {"taskId": "t1", "status": status, "createdAt": "2026-01-27T03:32:48Z", "ttl": 60000, "pollInterval": 20}


for line in sys.stdin:
    message = json.loads(line)
    method, ident = message.get("method"), message.get("id")
    if ident is None:
        continue
    if method is None:
        answer = message["input_responses"]
        if REJECTS:
            # Sent after the client has polled the task twice.
            late = {"id": ident, "error": {"code": -32602, "message": "the answer is rejected"}}
    elif method == "initialize":
        info = {"name": "draft", "version": "1"}
        write({"id": ident, "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}})
    elif method == "tools/call":
        write({"id": ident, "result": {"task": task("Working")}})
    elif method == "tasks/get":
        if answer is None:
            write({"id": ident, "result": task("input_required")})
        elif late is not None:
            polls += 1
            write({"id": ident, "result": task("Working")})
            if polls == 2:
                write(late)
        else:
            write({"id": ident, "result": task("Working" if REJECTS else "Completed")})
    elif method == "tasks/result":
        related = {META: {"taskId": "t1"}}
        if answer is None:
            write({"id": ident, "input_requests": {"which": FORM}, "_meta": related})
        else:
            text = json.dumps(answer["which"]["result"]["content"])
            content = [{"type": "text", "text": text}]
            write({"id": ident, "result": {"content": content, "isError": False, "_meta": related}})
    else:
        write({"id": ident, "error": {"code": -32601, "message": "no such method"}})
