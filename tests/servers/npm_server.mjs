#!/usr/bin/env node
// A server written with the TypeScript SDK (@modelcontextprotocol/server 2.4.0), revision 2026-07-28.
//
//     npm_server.mjs --http     on a port of 127.0.0.1 that is free; prints `listening on URL`
//     npm_server.mjs --stdio    over standard input and output, until the input ends
//
// What it offers is what every server in this folder offers: see README.md.
//
// The packages are found through the link `node_modules` that scripts/tools puts beside this file.

import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { toNodeHandler } from '@modelcontextprotocol/node';
import {
    acceptedContent,
    completable,
    createMcpHandler,
    createRequestStateCodec,
    inputRequired,
    inputResponse,
    McpServer,
    ResourceTemplate
} from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import * as z from 'zod';

// How often something was done that must not be done twice.
let effects = 0;

// How often `counter` was called in this process.
let calls = 0;

// The key is known, so that a server that is started anew reads what the one before it wrote.
const states = createRequestStateCodec({ key: 'a key that is as public as this file' });

const BOOKING = z.object({
    date: z.string().meta({ title: 'Day', format: 'date' }),
    guests: z.number().int().min(1).max(8),
    seating: z.enum(['inside', 'outside']).default('inside')
});
const CITY = z.object({ city: z.string() });
const NIGHTS = z.object({ nights: z.number().int().min(1) });
const DISH = z.object({ dish: z.string() });
const NAME = z.object({ name: z.string() });

const MEAL = z.object({ dish: z.string(), price: z.number(), tags: z.array(z.string()) });

const STYLES = ['warmly', 'wittily', 'briefly'];
const DAYS = ['monday', 'tuesday'];
const LIST_WINES = {
    name: 'list_wines',
    description: 'Lists wines',
    inputSchema: { type: 'object', properties: { country: { type: 'string' } } }
};

const text = (said) => ({ content: [{ type: 'text', text: String(said) }] });

const form = (message, requestedSchema) => inputRequired.elicit({ message, requestedSchema });

const model = (question, tools) =>
    inputRequired.createMessage({
        messages: [{ role: 'user', content: { type: 'text', text: question } }],
        maxTokens: 100,
        ...(tools && { tools })
    });

const ask = (inputRequests) => inputRequired({ inputRequests });

const startingWith = (values) => (value) => values.filter((known) => known.startsWith(value));

const namesOf = (roots) => roots.map((root) => root.name).join(', ');

function bookTable(_arguments, { mcpReq }) {
    const answer = inputResponse(mcpReq.inputResponses, 'booking');
    if (answer.kind === 'missing') return ask({ booking: form('When, and for how many?', BOOKING) });
    if (answer.action !== 'accept') return text(`no table was booked: ${answer.action}`);
    const booking = acceptedContent(mcpReq.inputResponses, 'booking', BOOKING);
    if (!booking) return { ...text('that is no booking'), isError: true };
    effects += 1;
    return text(`a table for ${booking.guests} on ${booking.date}, ${booking.seating}`);
}

async function planTrip(_arguments, context) {
    const { inputResponses, requestState } = context.mcpReq;
    const state = requestState();
    if (state === undefined) {
        return inputRequired({
            inputRequests: { city: form('Where to?', CITY) },
            requestState: await states.mint({ asked: 'city' }, context)
        });
    }
    if (state.asked === 'city') {
        const { city } = acceptedContent(inputResponses, 'city', CITY) ?? {};
        if (!city) return text('no trip');
        return inputRequired({
            inputRequests: { nights: form(`How many nights in ${city}?`, NIGHTS) },
            requestState: await states.mint({ asked: 'nights', city }, context)
        });
    }
    const { nights } = acceptedContent(inputResponses, 'nights', NIGHTS) ?? {};
    if (!nights) return text('no trip');
    effects += 1;
    return text(`${nights} nights in ${state.city}`);
}

function orderDinner(_arguments, { mcpReq }) {
    const answers = mcpReq.inputResponses;
    if (!answers) {
        return ask({
            dish: form('What would you like?', DISH),
            wine: model('Which wine?'),
            places: inputRequired.listRoots()
        });
    }
    const [wine, places] = ['wine', 'places'].map((key) => inputResponse(answers, key));
    const { dish } = acceptedContent(answers, 'dish', DISH) ?? {};
    if (!dish || wine.kind !== 'sampling' || places.kind !== 'roots') return text('no dinner');
    effects += 1;
    return text(`${dish} with ${wine.result.content.text} in ${namesOf(places.roots)}`);
}

function signIn(_arguments, { mcpReq }) {
    const answer = inputResponse(mcpReq.inputResponses, 'login');
    if (answer.kind === 'missing') {
        return ask({ login: inputRequired.elicitUrl({ message: 'Please sign in.', url: 'https://example.com/login?for=you' }) });
    }
    return text(answer.action === 'accept' ? 'signed in' : `not signed in: ${answer.action}`);
}

function suggest({ about }, { mcpReq }) {
    const answer = inputResponse(mcpReq.inputResponses, 'opinion');
    if (answer.kind === 'missing') return ask({ opinion: model(`What about ${about}?`) });
    return text(`the model ${answer.result.model} said: ${answer.result.content.text}`);
}

function suggestWithTools({ about }, { mcpReq }) {
    const answer = inputResponse(mcpReq.inputResponses, 'opinion');
    if (answer.kind === 'missing') return ask({ opinion: model(`What about ${about}?`, [LIST_WINES]) });
    const used = [answer.result.content].flat().find((block) => block.type === 'tool_use');
    return text(`the model called ${used.name}(${used.input.country})`);
}

function listPlaces(_arguments, { mcpReq }) {
    const answer = inputResponse(mcpReq.inputResponses, 'places');
    if (answer.kind === 'missing') return ask({ places: inputRequired.listRoots() });
    return text(namesOf(answer.roots));
}

async function slow({ seconds }, { mcpReq }) {
    const progressToken = mcpReq._meta?.progressToken;
    for (let step = 1; step <= 4; step += 1) {
        const params = { progressToken, progress: step, total: 4, message: `step ${step}` };
        if (progressToken !== undefined) await mcpReq.notify({ method: 'notifications/progress', params });
        await sleep((seconds * 1000) / 4);
    }
    return text('served');
}

async function log(_arguments, { mcpReq }) {
    await mcpReq.log('info', 'The kitchen is open.');
    await mcpReq.log('warning', 'The kitchen closes soon.');
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

function greeting({ style }, { mcpReq }) {
    const name = acceptedContent(mcpReq.inputResponses, 'name', NAME)?.name;
    if (!name) return ask({ name: form('Who is to be greeted?', NAME) });
    return { messages: [{ role: 'user', content: { type: 'text', text: `Greet ${name}, ${style}.` } }] };
}

function diary(uri, { day }, { mcpReq }) {
    const name = acceptedContent(mcpReq.inputResponses, 'name', NAME)?.name;
    if (!name) return ask({ name: form('Whose diary?', NAME) });
    return { contents: [{ uri: uri.href, mimeType: 'text/plain', text: `${name} on ${day}` }] };
}

function restaurant() {
    const options = { capabilities: { logging: {} }, requestState: { verify: states.verify } };
    const server = new McpServer({ name: 'npm-restaurant', version: '1' }, options);
    const numbers = z.object({ a: z.number().int(), b: z.number().int() });
    server.registerTool('add', { description: 'Adds', inputSchema: numbers }, ({ a, b }) => text(a + b));
    server.registerTool('effects', { description: 'Counts what was done' }, () => text(effects));
    const nothing = z.object({});
    const tools = { book_table: bookTable, plan_trip: planTrip, order_dinner: orderDinner, sign_in: signIn, list_places: listPlaces, log, counter };
    for (const [name, handler] of Object.entries(tools)) {
        server.registerTool(name, { description: name, inputSchema: nothing }, handler);
    }
    const topic = z.object({ about: z.string() });
    server.registerTool('suggest', { description: 'Asks the model', inputSchema: topic }, suggest);
    server.registerTool('suggest_with_tools', { description: 'Lets the model use a tool', inputSchema: topic }, suggestWithTools);
    server.registerTool('echo', { description: 'Repeats', inputSchema: z.object({ text: z.string() }) }, (said) => text(said.text));
    server.registerTool('slow', { description: 'Waits', inputSchema: z.object({ seconds: z.number() }) }, slow);
    server.registerTool('fail', { description: 'Fails' }, () => ({ ...text('the kitchen is closed'), isError: true }));
    server.registerTool('structured', { description: 'The meal of the day', outputSchema: MEAL }, structured);
    const style = completable(z.string(), startingWith(STYLES));
    server.registerPrompt('greeting', { description: 'Greets', argsSchema: z.object({ style }) }, greeting);
    server.registerResource('menu', 'restaurant://menu', { mimeType: 'text/plain' }, (uri) => ({
        contents: [{ uri: uri.href, mimeType: 'text/plain', text: 'fish, cheese' }]
    }));
    const days = new ResourceTemplate('restaurant://diary/{day}', { list: undefined, complete: { day: startingWith(DAYS) } });
    server.registerResource('diary', days, {}, diary);
    return server;
}

switch (process.argv[2]) {
    case '--stdio':
        serveStdio(restaurant);
        break;
    case '--http': {
        const listener = createServer(toNodeHandler(createMcpHandler(restaurant)));
        listener.listen(0, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${listener.address().port}/mcp`));
        break;
    }
    default:
        console.error('usage: npm_server.mjs --http | --stdio');
        process.exit(2);
}
