#!/usr/bin/env node
// Plays stories as an ordinary user of the TypeScript SDK for 2025-11-25 (@modelcontextprotocol/sdk 1.x).
//
//     legacy_npm.mjs URL
//     legacy_npm.mjs --stdio COMMAND [ARGUMENT...]
//     legacy_npm.mjs --listen RESOURCE URL
//
// With --listen it subscribes to a resource instead, says so by calling the tool `subscribed`, and waits to be told
// that the resource changed. It says so by calling the tool again, and waits to be told that the list of tools changed:
// the server is restarted meanwhile.
//
// What the server asks comes while a call goes on, and handlers answer it. It prints one line `ok NAME` for each
// check that held, and ends with status 1 and the reason at the first one that did not.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
    CreateMessageRequestSchema,
    ElicitRequestSchema,
    ListRootsRequestSchema,
    ResourceUpdatedNotificationSchema,
    ToolListChangedNotificationSchema,
} from "@modelcontextprotocol/sdk/types.js";

const ANSWERS = { name: "octocat", resolution: "Duplicate", duplicateOfId: 4301 };
const ANALYSIS = "The mean of these three numbers is 2.";
const SECONDS_FOR_ALL = 180;

function expect(holds, reason) {
    if (!holds) throw new Error(reason);
}

const user = { asked: [], declines: false };
const client = new Client(
    { name: "legacy", version: "1" },
    { capabilities: { elicitation: {}, sampling: {}, roots: {} } },
);
client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
    user.asked.push("form");
    if (user.declines) return { action: "decline" };
    const names = Object.keys(params.requestedSchema.properties);
    const content = Object.fromEntries(names.map((name) => [name, ANSWERS[name]]));
    return { action: "accept", content };
});
client.setRequestHandler(CreateMessageRequestSchema, async () => {
    user.asked.push("sampling");
    const content = { type: "text", text: ANALYSIS };
    return { role: "assistant", content, model: "none", stopReason: "endTurn" };
});
client.setRequestHandler(ListRootsRequestSchema, async () => {
    user.asked.push("roots");
    return { roots: [{ uri: "file:///project", name: "project" }] };
});

const [first, ...rest] = process.argv.slice(2);
const transport =
    first === "--stdio"
        ? new StdioClientTransport({ command: rest[0], args: rest.slice(1) })
        : new StreamableHTTPClientTransport(new URL(first === "--listen" ? rest[1] : first));

const textOf = (result) => result.content.map((block) => block.text ?? "").join("");

async function call(name, args) {
    const result = await client.callTool({ name, arguments: args });
    expect(!result.isError, `${name} failed: ${textOf(result)}`);
    return textOf(result);
}

async function play() {
    await client.connect(transport);
    expect(client.getServerVersion().name === "refrain", `is ${client.getServerVersion().name}`);
    console.log("ok initialize");

    await client.ping();
    console.log("ok ping");

    const names = (await client.listTools()).tools.map((tool) => tool.name);
    expect(names.includes("get_weather"), `lists ${names}`);
    console.log("ok tools/list");

    let said = await call("get_weather", { location: "New York" });
    expect(said.includes("New York") && `${user.asked}` === "form", `${said} after ${user.asked}`);
    console.log("ok get_weather");

    user.asked = [];
    said = await call("update_work_item", { workItemId: 4522, fields: { "System.State": "Resolved" } });
    expect(said.includes("Duplicate") && `${user.asked}` === "form,form", `${said} after ${user.asked}`);
    console.log("ok update_work_item");

    user.asked = [];
    said = await call("weather_and_capital", { location: "New York" });
    expect(said.includes(ANALYSIS) && `${user.asked.sort()}` === "form,sampling", `${said} after ${user.asked}`);
    console.log("ok weather_and_capital");

    said = await call("analyze_data", { data: "1 2 3" });
    expect(said === ANALYSIS, said);
    console.log("ok analyze_data");

    said = await call("project_roots", {});
    expect(said.includes("file:///project"), said);
    console.log("ok project_roots");

    user.declines = true;
    const result = await client.callTool({ name: "get_weather", arguments: { location: "New York" } });
    expect(result.isError === true, `declined, and yet ${textOf(result)}`);
    console.log("ok get_weather declined");
}

async function listen(uri) {
    const changed = new Promise((resolve) => {
        client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => {
            if (params.uri === uri) resolve();
        });
    });
    const listed = new Promise((resolve) => {
        client.setNotificationHandler(ToolListChangedNotificationSchema, resolve);
    });
    await client.connect(transport);
    await client.subscribeResource({ uri });
    await call("subscribed", {});
    await changed;
    console.log("ok resources/updated");
    await call("subscribed", {});
    await listed;
    console.log("ok tools/list_changed");
    await client.ping();
    console.log("ok ping");
}

const late = setTimeout(() => {
    console.log(`FAIL: not done after ${SECONDS_FOR_ALL} seconds`);
    process.exit(1);
}, SECONDS_FOR_ALL * 1000);
try {
    await (first === "--listen" ? listen(rest[0]) : play());
    await client.close();
    clearTimeout(late);
} catch (error) {
    console.log(`FAIL ${error.message}`);
    process.exit(1);
}
