#!/usr/bin/env node
// A driver for the TypeScript SDK (@modelcontextprotocol/client 2.4.0), which speaks 2026-07-28. See README.md.

import { Client, LOG_LEVEL_META_KEY, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { CAPABILITIES, CLIENT_INFO, MS_FOR_ONE_CALL, drive } from './driving.mjs';

function transportTo({ url, command }) {
    if (url) return new StreamableHTTPClientTransport(new URL(url));
    const [program, ...args] = command;
    return new StdioClientTransport({ command: program, args });
}

await drive(async (target, person) => {
    const client = new Client(CLIENT_INFO, {
        capabilities: CAPABILITIES,
        // Pinned: otherwise the SDK falls back to the legacy handshake without a word.
        versionNegotiation: { mode: { pin: '2026-07-28' } }
    });
    client.setRequestHandler('elicitation/create', (request) => person.elicit(request));
    client.setRequestHandler('sampling/createMessage', (request) => person.sample(request));
    client.setRequestHandler('roots/list', () => person.roots());
    client.setNotificationHandler('notifications/message', (notification) => person.noteLog(notification));
    await client.connect(transportTo(target), { timeout: MS_FOR_ONE_CALL });
    const callTool = client.callTool.bind(client);
    client.callTool = (params, options) => callTool({ ...params, _meta: { [LOG_LEVEL_META_KEY]: 'info' } }, options);
    return client;
});
