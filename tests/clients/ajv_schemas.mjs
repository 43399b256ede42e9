// Compiles the schemas of every tool of a server with Ajv in strict mode, as clients do that validate with it, and the
// schemas of the forms that its tools ask with.
//
//     ajv_schemas.mjs URL
//
// Prints one line `ok NAME` for each schema, and ends with status 1 and the reason at the first one that Ajv rejects or
// warns about.

import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";

const [url] = process.argv.slice(2);
const PROTOCOL_VERSION = "2026-07-28";
const _meta = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
    "io.modelcontextprotocol/clientInfo": { name: "ajv", version: "1" },
    "io.modelcontextprotocol/clientCapabilities": { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} },
};

async function request(method, params) {
    const response = await fetch(url, {
        method: "POST",
        headers: {
            "content-type": "application/json",
            accept: "application/json, text/event-stream",
            "mcp-protocol-version": PROTOCOL_VERSION,
            "mcp-method": method,
            ...(params.name && { "mcp-name": params.name }),
        },
        body: JSON.stringify({ jsonrpc: "2.0", id: 1, method, params: { ...params, _meta } }),
    });
    const { result, error } = await response.json();
    if (!result) throw new Error(`${method}: ${JSON.stringify(error)}`);
    return result;
}

function compile(name, schema) {
    const warn = (...said) => {
        throw new Error(said.join(" "));
    };
    const ajv = new Ajv2020({ strict: true, allErrors: true, logger: { log: warn, warn, error: warn } });
    addFormats(ajv);
    try {
        ajv.compile(schema);
    } catch (error) {
        throw new Error(`${name}: ${error.message} in ${JSON.stringify(schema)}`);
    }
    console.log(`ok ${name}`);
}

try {
    let cursor;
    const tools = [];
    do {
        const page = await request("tools/list", cursor === undefined ? {} : { cursor });
        tools.push(...page.tools);
        cursor = page.nextCursor;
    } while (cursor !== undefined);
    for (const { name, inputSchema, outputSchema } of tools) {
        compile(`${name} input`, inputSchema);
        if (outputSchema) compile(`${name} output`, outputSchema);
    }
    // Tools without arguments are called, and ask with their forms.
    for (const { name } of tools.filter((tool) => !tool.inputSchema.required?.length)) {
        const { inputRequests = {} } = await request("tools/call", { name, arguments: {} });
        for (const [key, { params }] of Object.entries(inputRequests)) {
            if (params?.requestedSchema) compile(`${name} form ${key}`, params.requestedSchema);
        }
    }
} catch (error) {
    console.error(`FAIL ${error.message}`);
    process.exit(1);
}
