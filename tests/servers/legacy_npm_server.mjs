#!/usr/bin/env node
// A server of the revision 2025-11-25, written with the TypeScript SDK of its time (@modelcontextprotocol/sdk 1.32.2).
//
//     legacy_npm_server.mjs --http     on a port of 127.0.0.1 that is free; prints `listening on URL`
//     legacy_npm_server.mjs --stdio    over standard input and output, until the input ends
//
// What it offers is what every server in this folder offers: see README.md. It asks while the call runs, with requests
// of its own. `book_table_unassociated` does so as many published servers do: without naming the call, so that over
// HTTP the request is sent on the stream of the session. `pay` refuses with -32042 until a page that this program serves
// has been visited.
//
// The packages are found through the link `node_modules` that scripts/tools puts beside this file.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { completable } from '@modelcontextprotocol/sdk/server/completable.js';
import { McpServer, ResourceTemplate } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { UrlElicitationRequiredError } from '@modelcontextprotocol/sdk/types.js';
import * as z from 'zod';

// How often something was done that must not be done twice.
let effects = 0;

// How often `counter` was called in this process.
let calls = 0;

// The accounts that are connected: their pages were visited.
const connected = new Set();

// The page on which a person connects an account: /connect/ACCOUNT.
const pages = createServer((request, response) => {
    connected.add(request.url.replace('/connect/', ''));
    response.end('connected');
});
await new Promise((listening) => void pages.listen(0, '127.0.0.1', listening));
// It does not keep the process alive once the input has ended.
pages.unref();

const string = { type: 'string' };
const integer = (minimum, maximum) => ({ type: 'integer', minimum, ...(maximum && { maximum }) });
const BOOKING = {
    type: 'object',
    properties: {
        date: { type: 'string', title: 'Day', format: 'date' },
        guests: integer(1, 8),
        seating: { type: 'string', enum: ['inside', 'outside'], default: 'inside' }
    },
    required: ['date', 'guests']
};
const fields = (properties) => ({ type: 'object', properties, required: Object.keys(properties) });

const STYLES = ['warmly', 'wittily', 'briefly'];
const DAYS = ['monday', 'tuesday'];
const LIST_WINES = { name: 'list_wines', description: 'Lists wines', inputSchema: fields({ country: string }) };

const text = (said) => ({ content: [{ type: 'text', text: String(said) }] });

const startingWith = (values) => (value) => values.filter((known) => known.startsWith(value));

const namesOf = ({ roots }) => roots.map((root) => root.name).join(', ');

// The asks of a call: each names the call, so that over HTTP it is sent on the call's stream.
class Asks {
    constructor({ server }, { requestId }) {
        this.server = server;
        this.options = { relatedRequestId: requestId };
    }

    form(message, requestedSchema) {
        return this.server.elicitInput({ message, requestedSchema }, this.options);
    }

    url(message, url) {
        return this.server.elicitInput({ mode: 'url', message, url, elicitationId: randomUUID() }, this.options);
    }

    model(question, tools) {
        const messages = [{ role: 'user', content: { type: 'text', text: question } }];
        return this.server.createMessage({ messages, maxTokens: 100, ...(tools && { tools }) }, this.options);
    }

    roots() {
        return this.server.listRoots({}, this.options);
    }
}

function book({ action, content }) {
    if (action !== 'accept') return text(`no table was booked: ${action}`);
    effects += 1;
    return text(`a table for ${content.guests} on ${content.date}, ${content.seating ?? 'inside'}`);
}

async function planTrip(asks) {
    const { content: { city } = {} } = await asks.form('Where to?', fields({ city: string }));
    if (!city) return text('no trip');
    const { content: { nights } = {} } = await asks.form(`How many nights in ${city}?`, fields({ nights: integer(1) }));
    if (!nights) return text('no trip');
    effects += 1;
    return text(`${nights} nights in ${city}`);
}

async function orderDinner(asks) {
    const [dish, wine, places] = await Promise.all([
        asks.form('What would you like?', fields({ dish: string })),
        asks.model('Which wine?'),
        asks.roots()
    ]);
    if (dish.action !== 'accept') return text('no dinner');
    effects += 1;
    return text(`${dish.content.dish} with ${wine.content.text} in ${namesOf(places)}`);
}

async function signIn(asks) {
    const { action } = await asks.url('Please sign in.', 'https://example.com/login?for=you');
    return text(action === 'accept' ? 'signed in' : `not signed in: ${action}`);
}

async function suggest(asks, { about }) {
    const { model, content } = await asks.model(`What about ${about}?`);
    return text(`the model ${model} said: ${content.text}`);
}

async function suggestWithTools(asks, { about }) {
    const { content } = await asks.model(`What about ${about}?`, [LIST_WINES]);
    const used = [content].flat().find((block) => block.type === 'tool_use');
    return text(`the model called ${used.name}(${used.input.country})`);
}

function pay({ account }) {
    if (!connected.has(account)) {
        const url = `http://127.0.0.1:${pages.address().port}/connect/${account}`;
        const message = 'Please connect your account.';
        throw new UrlElicitationRequiredError([{ mode: 'url', message, url, elicitationId: randomUUID() }]);
    }
    effects += 1;
    return text(`paid from ${account}`);
}

async function slow({ seconds }, { _meta, sendNotification }) {
    const progressToken = _meta?.progressToken;
    for (let step = 1; step <= 4; step += 1) {
        const params = { progressToken, progress: step, total: 4, message: `step ${step}` };
        if (progressToken !== undefined) await sendNotification({ method: 'notifications/progress', params });
        await sleep((seconds * 1000) / 4);
    }
    return text('served');
}

async function log(_arguments, { sendNotification }) {
    for (const [level, data] of [['info', 'The kitchen is open.'], ['warning', 'The kitchen closes soon.']]) {
        await sendNotification({ method: 'notifications/message', params: { level, data } });
    }
    return text('logged');
}

function counter() {
    calls += 1;
    return text(JSON.stringify({ count: calls, pid: process.pid }));
}

const structured = () => ({
    ...text('fish for 12.5'),
    structuredContent: { dish: 'fish', price: 12.5, tags: ['fresh', 'local'] },
    _meta: { 'com.example/kitchen': 'open' }
});

function registerTools(server) {
    const tool = (name, inputSchema, handler) => server.registerTool(name, { description: name, inputSchema }, handler);
    const asking = (name, inputSchema, handler) =>
        tool(name, inputSchema, (args, extra) => handler(new Asks(server, extra), args));
    tool('add', { a: z.number().int(), b: z.number().int() }, ({ a, b }) => text(a + b));
    tool('effects', {}, () => text(effects));
    asking('book_table', {}, async (asks) => book(await asks.form('When, and for how many?', BOOKING)));
    tool('book_table_unassociated', {}, async () =>
        book(await server.server.elicitInput({ message: 'When, and for how many?', requestedSchema: BOOKING })));
    asking('plan_trip', {}, planTrip);
    asking('order_dinner', {}, orderDinner);
    asking('sign_in', {}, signIn);
    asking('suggest', { about: z.string() }, suggest);
    asking('suggest_with_tools', { about: z.string() }, suggestWithTools);
    asking('list_places', {}, async (asks) => text(namesOf(await asks.roots())));
    tool('pay', { account: z.string() }, pay);
    tool('echo', { text: z.string() }, (said) => text(said.text));
    tool('slow', { seconds: z.number() }, slow);
    tool('log', {}, log);
    tool('counter', {}, counter);
    tool('fail', {}, () => ({ ...text('the kitchen is closed'), isError: true }));
    const outputSchema = { dish: z.string(), price: z.number(), tags: z.array(z.string()) };
    server.registerTool('structured', { description: 'The meal of the day', outputSchema }, structured);
}

function restaurant() {
    const server = new McpServer({ name: 'legacy-npm-restaurant', version: '1' }, { capabilities: { logging: {} } });
    registerTools(server);
    const ask = async (extra, message) => {
        const { content } = await new Asks(server, extra).form(message, fields({ name: string }));
        return content?.name ?? 'nobody';
    };
    const style = completable(z.string(), startingWith(STYLES));
    server.registerPrompt('greeting', { description: 'Greets', argsSchema: { style } }, async (args, extra) => {
        const name = await ask(extra, 'Who is to be greeted?');
        return { messages: [{ role: 'user', content: { type: 'text', text: `Greet ${name}, ${args.style}.` } }] };
    });
    const contents = (uri, said) => ({ contents: [{ uri: uri.href, mimeType: 'text/plain', text: said }] });
    server.registerResource('menu', 'restaurant://menu', { mimeType: 'text/plain' }, (uri) => contents(uri, 'fish, cheese'));
    const days = new ResourceTemplate('restaurant://diary/{day}', { list: undefined, complete: { day: startingWith(DAYS) } });
    server.registerResource('diary', days, {}, async (uri, { day }, extra) =>
        contents(uri, `${await ask(extra, 'Whose diary?')} on ${day}`));
    return server;
}

// The sessions by id. Each has a server of its own, as the SDK's examples have it.
const sessions = new Map();

async function handle(request, response) {
    let transport = sessions.get(request.headers['mcp-session-id']);
    if (!transport && request.headers['mcp-session-id']) {
        response.writeHead(404).end();
        return;
    }
    if (!transport) {
        transport = new StreamableHTTPServerTransport({
            sessionIdGenerator: randomUUID,
            onsessioninitialized: (id) => void sessions.set(id, transport),
            onsessionclosed: (id) => void sessions.delete(id)
        });
        await restaurant().connect(transport);
    }
    await transport.handleRequest(request, response);
}

switch (process.argv[2]) {
    case '--stdio':
        await restaurant().connect(new StdioServerTransport());
        break;
    case '--http': {
        const listener = createServer(handle);
        listener.listen(0, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${listener.address().port}/mcp`));
        break;
    }
    default:
        console.error('usage: legacy_npm_server.mjs --http | --stdio');
        process.exit(2);
}
