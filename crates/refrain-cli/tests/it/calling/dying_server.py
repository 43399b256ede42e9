"""A server over standard input and output that fails, and says why on standard error.

Usage: dying_server.py FILE MODE. Each start appends a line with the process id to FILE. MODE is what the server does:

  exit            exits without reading its input
  exit-later      reads `server/discover` and `initialize`, exits some seconds later
  close-output    closes its output, and stays
  at-discover     exits at `server/discover`; otherwise it serves 2024-11-05
  silent          never responds, and has a child process, whose id is in FILE too
"""

import json
import os
import subprocess
import sys
import time

file, mode = sys.argv[1:]


def record(process):
    with open(file, "a") as starts:
        starts.write(f"{process}\n")


def respond(message, result):
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


record(os.getpid())
print("the licence \x1b[2J has expired", file=sys.stderr, flush=True)
match mode:
    case "exit":
        time.sleep(0.5)
        sys.exit(3)
    case "exit-later":
        sys.stdin.readline()
        sys.stdin.readline()
        time.sleep(7)
        sys.exit(3)
    case "close-output":
        os.close(1)
        time.sleep(600)
    case "silent":
        record(subprocess.Popen(["sleep", "600"]).pid)
        time.sleep(600)
    case "at-discover":
        for line in sys.stdin:
            message = json.loads(line)
            match message["method"]:
                case "server/discover":
                    sys.exit("expected initialize")
                case "initialize":
                    info = {"name": "old", "version": "1"}
                    respond(message, {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": info})
                case "tools/call":
                    respond(message, {"content": [{"type": "text", "text": "as today"}]})
