// Calls a tool as a web page of another origin does: a preflight by the rules of fetch, then a request with a compressed
// body, whose response is read only if the server allows it.
//
//     fetch_page.mjs URL ORIGIN
//
// Prints one line `ok NAME` for each check that held, and ends with status 1 and the reason at the first that did not.

const [url, origin] = process.argv.slice(2);
const PROTOCOL_VERSION = "2026-07-28";

function expect(holds, reason) {
    if (!holds) throw new Error(reason);
}

/// A page may read a response that names its origin.
function check(response) {
    const allowed = response.headers.get("access-control-allow-origin");
    expect(allowed === origin, `blocked by CORS policy: ${response.status}, allowed origin ${allowed}`);
}

function list(response, name) {
    return (response.headers.get(name) ?? "").split(",").map((item) => item.trim().toLowerCase());
}

const headers = {
    "content-type": "application/json",
    "content-encoding": "gzip",
    accept: "application/json, text/event-stream",
    "mcp-protocol-version": PROTOCOL_VERSION,
    "mcp-method": "tools/call",
    "mcp-name": "echo",
};
const message = {
    jsonrpc: "2.0",
    id: 1,
    method: "tools/call",
    params: {
        name: "echo",
        arguments: {},
        _meta: {
            "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
            "io.modelcontextprotocol/clientInfo": { name: "page", version: "1" },
            "io.modelcontextprotocol/clientCapabilities": { elicitation: { form: {} } },
        },
    },
};

try {
    const names = Object.keys(headers).filter((name) => name !== "accept");
    const preflight = await fetch(url, {
        method: "OPTIONS",
        headers: {
            origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": names.sort().join(","),
        },
    });
    check(preflight);
    expect(preflight.ok, `preflight: ${preflight.status}`);
    const refused = names.filter((name) => !list(preflight, "access-control-allow-headers").includes(name));
    expect(refused.length === 0, `preflight: not allowed: ${refused}`);
    console.log("ok preflight");

    const text = new Blob([JSON.stringify(message)]).stream();
    const body = await new Response(text.pipeThrough(new CompressionStream("gzip"))).arrayBuffer();
    const response = await fetch(url, { method: "POST", headers: { origin, ...headers }, body });
    check(response);
    const { result } = await response.json();
    expect(result?.resultType === "input_required", JSON.stringify(result));
    console.log("ok call");
} catch (error) {
    console.error(`FAIL ${error.message}`);
    process.exit(1);
}
