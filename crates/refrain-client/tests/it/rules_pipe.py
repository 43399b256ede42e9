"""A 2026-07-28 server over a pipe that follows the protocol rules and records violations by the client."""

import json
import os
import signal
import subprocess
import sys
import time

VERSION = "io.modelcontextprotocol/protocolVersion"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
violations = []
subscriptions = []
waiting = []
polls = []


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def complete(id, text):
    send(id=id, result={"resultType": "complete", "content": [{"type": "text", "text": text}]})


def notify(subscription, method, **params):
    send(method=method, params={"_meta": {SUBSCRIPTION: subscription}, **params})


def call(id, params):
    match params["name"]:
        case "wait":
            waiting.append(id)
        case "violations":
            complete(id, "; ".join(violations))
        case "change":
            # Each subscription gets its own resource, the newest first.
            for number, subscription in reversed(list(enumerate(subscriptions))):
                notify(subscription, "notifications/resources/updated", uri=f"file:///{number}")
            complete(id, "changed")
        case "end":
            send(method="notifications/cancelled", params={"requestId": 999})
            send(method="notifications/cancelled", params={})
            send(method="notifications/cancelled", params={"requestId": subscriptions[0]})
            complete(id, "ended")
        case "unknown_id":
            send(id=params["arguments"]["text"] or 12345, result={"resultType": "complete", "content": []})
        case "task":
            send(id=id, result={"resultType": "task", "taskId": "t1", "status": "working", "ttlMs": None})
        case "exit":
            # The child keeps the output open.
            subprocess.Popen(["sleep", "3"])
            complete(id, str(os.getpid()))
            os._exit(0)
        case "pid":
            complete(id, str(os.getpid()))
        case "leave":
            ignore_signal = lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = subprocess.Popen(["sleep", "600"], preexec_fn=ignore_signal, stdout=subprocess.DEVNULL)
            complete(id, str(child.pid))
            os._exit(0)
        case "values":
            send(id=id, result={"resultType": "complete", "content": [], "structuredContent": [{"": 0}] * 70_000})
        case "echo":
            complete(id, params["arguments"]["text"])


def handle(message):
    method, params, id = message["method"], message.get("params", {}), message.get("id")
    if id is not None and params["_meta"].get(VERSION) != "2026-07-28":
        violations.append(f"{method} without metadata")
    match method:
        case "server/discover":
            send(id=id, result={"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}})
        case "subscriptions/listen" if "no-listen" in sys.argv:
            # Like servers that ignore unknown methods.
            pass
        case "tasks/get":
            polls.append(id)
            status = {"status": "completed", "result": {"content": [{"type": "text", "text": "built"}]}}
            status = status if len(polls) > 3 else {"status": "working"}
            send(id=id, result={"resultType": "complete", "taskId": "t1", "pollIntervalMs": 20, **status})
        case "subscriptions/listen":
            subscriptions.append(id)
            notify(id, "notifications/subscriptions/acknowledged", notifications=params["notifications"])
        case "notifications/cancelled":
            if id is not None or params["requestId"] not in waiting:
                violations.append(f"invalid {message}")
            # The response crosses the cancellation.
            complete(params["requestId"], "late")
        case "tools/call":
            call(id, params)
        case _:
            violations.append(f"unknown method {method}")


if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("server started", file=sys.stderr, flush=True)
for line in sys.stdin:
    try:
        handle(json.loads(line))
    except (ValueError, KeyError, TypeError) as error:
        violations.append(f"{line!r}: {error}")
while "stubborn" in sys.argv:
    time.sleep(1)
