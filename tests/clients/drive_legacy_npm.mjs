#!/usr/bin/env node
// A driver for the TypeScript SDK of 2025-11-25 (@modelcontextprotocol/sdk 1.32.2). See README.md.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
    CreateMessageRequestSchema,
    ElicitRequestSchema,
    ListRootsRequestSchema,
    LoggingMessageNotificationSchema
} from '@modelcontextprotocol/sdk/types.js';
import { CAPABILITIES, CLIENT_INFO, MS_FOR_ONE_CALL, drive } from './driving.mjs';

function transportTo({ url, command }) {
    if (url) return new StreamableHTTPClientTransport(new URL(url));
    const [program, ...args] = command;
    return new StdioClientTransport({ command: program, args });
}

await drive(async (target, person) => {
    const client = new Client(CLIENT_INFO, { capabilities: CAPABILITIES });
    client.setRequestHandler(ElicitRequestSchema, (request) => person.elicit(request));
    client.setRequestHandler(CreateMessageRequestSchema, (request) => person.sample(request));
    client.setRequestHandler(ListRootsRequestSchema, () => person.roots());
    client.setNotificationHandler(LoggingMessageNotificationSchema, (notification) => person.noteLog(notification));
    await client.connect(transportTo(target), { timeout: MS_FOR_ONE_CALL });
    if (client.getServerCapabilities()?.logging) await client.setLoggingLevel('info');
    const callTool = client.callTool.bind(client);
    client.callTool = (params, options) => callTool(params, undefined, options);
    return client;
});
