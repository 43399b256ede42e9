"""A server of 2026-07-28 behind a pipe, that keeps to the rules and sees whether its client does."""

import json
import os
import subprocess
import sys

VERSION = "io.modelcontextprotocol/protocolVersion"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
broken = []
listening = []
waiting = []
looks = []


def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def done(id, text):
    say(id=id, result={"resultType": "complete", "content": [{"type": "text", "text": text}]})


def tell(subscription, method, **params):
    say(method=method, params={"_meta": {SUBSCRIPTION: subscription}, **params})


def call(id, params):
    match params["name"]:
        case "wait":
            waiting.append(id)
        case "broken":
            done(id, "; ".join(broken))
        case "change":
            # Each hears of its own, and the later one first.
            for number, subscription in reversed(list(enumerate(listening))):
                tell(subscription, "notifications/resources/updated", uri=f"file:///{number}")
            done(id, "changed")
        case "end":
            say(method="notifications/cancelled", params={"requestId": 999})
            say(method="notifications/cancelled", params={})
            say(method="notifications/cancelled", params={"requestId": listening[0]})
            done(id, "ended")
        case "unasked":
            say(id=params["arguments"]["text"] or 12345, result={"resultType": "complete", "content": []})
        case "task":
            say(id=id, result={"resultType": "task", "taskId": "t1", "status": "working", "ttlMs": None})
        case "leave":
            # What it has started holds its output open.
            subprocess.Popen(["sleep", "3"])
            done(id, str(os.getpid()))
            os._exit(0)
        case "echo":
            done(id, params["arguments"]["text"])


def take(message):
    method, params, id = message["method"], message.get("params", {}), message.get("id")
    if id is not None and params["_meta"].get(VERSION) != "2026-07-28":
        broken.append(f"{method} without metadata")
    match method:
        case "server/discover":
            say(id=id, result={"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}})
        case "subscriptions/listen" if "mute" in sys.argv:
            # Like servers that say nothing to what they do not know.
            pass
        case "tasks/get":
            looks.append(id)
            status = {"status": "completed", "result": {"content": [{"type": "text", "text": "built"}]}}
            status = status if len(looks) > 3 else {"status": "working"}
            say(id=id, result={"resultType": "complete", "taskId": "t1", "pollIntervalMs": 20, **status})
        case "subscriptions/listen":
            listening.append(id)
            tell(id, "notifications/subscriptions/acknowledged", notifications=params["notifications"])
        case "notifications/cancelled":
            if id is not None or params["requestId"] not in waiting:
                broken.append(f"{message} makes no sense")
            # Too late: the answer was on its way.
            done(params["requestId"], "late")
        case "tools/call":
            call(id, params)
        case _:
            broken.append(f"{method} is unknown")


print("a word to whoever starts this", file=sys.stderr, flush=True)
for line in sys.stdin:
    try:
        take(json.loads(line))
    except (ValueError, KeyError, TypeError) as error:
        broken.append(f"{line!r}: {error}")
