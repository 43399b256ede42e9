#!/usr/bin/env node
// Plays the documents' stories as an ordinary user of the TypeScript SDK
// (@modelcontextprotocol/client 2.4.0).
//
//     npm_client.mjs [--token TOKEN] URL
//     npm_client.mjs --stdio COMMAND [ARGUMENT...]
//
// The SDK runs the rounds: this script only registers handlers and calls tools. It prints one line
// `ok NAME` for each check that held, and ends with status 1 and the reason at the first one that
// did not.
//
// The packages are found through the link `node_modules` that scripts/tools puts beside this file.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const PROTOCOL_VERSION = '2026-07-28';
const WORK_ITEM_RESOLVED =
    'Bug #4522 resolved as Duplicate of Bug #4301. State set to Resolved and duplicate link created.';
const ANALYSIS = 'The mean of these three numbers is 2.';
const MS_FOR_ALL = 180_000;
const MS_FOR_ONE_ROUND = 60_000;

function expect(holds, reason) {
    if (!holds) throw new Error(reason);
}

// The person and the model behind the client: answers by field name, and remembers what was asked.
const user = {
    answers: {},
    declines: false,
    asked: [],
    sampled: [],
    sitsDown({ answers = {}, declines = false } = {}) {
        Object.assign(this, { answers, declines, asked: [], sampled: [] });
    }
};

const client = new Client(
    { name: 'refrain-tests', version: '0' },
    {
        capabilities: { elicitation: { form: {} }, sampling: {} },
        // Without this the SDK speaks the legacy revision and never sees an incomplete result.
        versionNegotiation: { mode: 'auto' }
    }
);

client.setRequestHandler('elicitation/create', async ({ params }, context) => {
    expect(params.mode === undefined || params.mode === 'form', `asked in mode '${params.mode}', not with a form`);
    expect(params.message, 'asked without a message');
    user.asked.push(context.mcpReq.id);
    if (user.declines) return { action: 'decline' };
    const { properties = {}, required = [] } = params.requestedSchema;
    const known = Object.keys(properties).filter((name) => name in user.answers);
    const missing = required.filter((name) => !known.includes(name));
    expect(missing.length === 0, `asked for ${missing}, which this script has no answer to`);
    return { action: 'accept', content: Object.fromEntries(known.map((name) => [name, user.answers[name]])) };
});

client.setRequestHandler('sampling/createMessage', async ({ params }) => {
    const blocks = params.messages.flatMap((message) => message.content);
    user.sampled.push(blocks.filter((block) => block.type === 'text').map((block) => block.text).join(' '));
    return {
        role: 'assistant',
        content: { type: 'text', text: ANALYSIS },
        model: 'scripted',
        stopReason: 'endTurn'
    };
});

const textOf = (result) =>
    result.content.filter((block) => block.type === 'text').map((block) => block.text).join('\n');

const callTool = (name, args) => client.callTool({ name, arguments: args }, { timeout: MS_FOR_ONE_ROUND });

const checks = {
    async discover() {
        // In mode 'auto' the SDK falls back to the legacy handshake without a word.
        const version = client.getNegotiatedProtocolVersion();
        expect(version === PROTOCOL_VERSION, `negotiated ${version}`);
    },

    async 'tools/list'() {
        const listed = (await client.listTools()).tools.map((tool) => tool.name);
        const missing = ['get_weather', 'update_work_item', 'analyze_data'].filter((name) => !listed.includes(name));
        expect(missing.length === 0, `not listed: ${missing}; listed: ${listed}`);
    },

    async get_weather() {
        user.sitsDown({ answers: { name: 'octocat' } });
        const result = await callTool('get_weather', { location: 'New York' });
        const text = textOf(result);
        expect(!result.isError, `ended with an error: '${text}'`);
        expect(user.asked.join() === 'github_login', `asked ${user.asked}`);
        expect(text.includes('Current weather in New York:') && text.includes('72°F'), `answered '${text}'`);
    },

    async update_work_item() {
        user.sitsDown({ answers: { resolution: 'Duplicate', duplicateOfId: 4301 } });
        const result = await callTool('update_work_item', {
            workItemId: 4522,
            fields: { 'System.State': 'Resolved' }
        });
        const text = textOf(result);
        expect(!result.isError, `ended with an error: '${text}'`);
        expect(user.asked.join() === 'resolution,duplicate_of', `asked ${user.asked}`);
        expect(text === WORK_ITEM_RESOLVED, `answered '${text}'`);
    },

    async 'get_weather declined'() {
        user.sitsDown({ declines: true });
        const result = await callTool('get_weather', { location: 'New York' });
        const text = textOf(result);
        expect(user.asked.join() === 'github_login', `asked ${user.asked}; a decline is an answer`);
        expect(!text.includes('Current weather'), `went on after a decline: '${text}'`);
        expect(text, 'ended without a word to the caller');
    },

    async analyze_data() {
        user.sitsDown();
        const result = await callTool('analyze_data', { data: '1,2,3' });
        const text = textOf(result);
        expect(!result.isError, `ended with an error: '${text}'`);
        expect(user.sampled.length === 1, `sampled ${user.sampled.length} times`);
        expect(user.sampled[0].includes('1,2,3'), `the model was not shown the data: '${user.sampled[0]}'`);
        expect(text.includes(ANALYSIS), `answered '${text}', without what the model said`);
    }
};

function transportFrom(args) {
    const [first, ...rest] = args;
    if (first === '--stdio' && rest.length > 0) {
        const [command, ...others] = rest;
        return new StdioClientTransport({ command, args: others });
    }
    const [token, url, ...more] = first === '--token' ? rest : [undefined, ...args];
    if (url === undefined || url.startsWith('-') || more.length > 0) {
        console.error('usage: npm_client.mjs [--token TOKEN] URL | --stdio COMMAND [ARGUMENT...]');
        process.exit(2);
    }
    return new StreamableHTTPClientTransport(
        new URL(url),
        token && { authProvider: { token: async () => token } }
    );
}

let current = 'connect';

function fail(reason) {
    console.error(`FAIL ${current}: ${reason}`);
    process.exit(1);
}

setTimeout(() => fail(`no end after ${MS_FOR_ALL / 1000} seconds`), MS_FOR_ALL).unref();

try {
    await client.connect(transportFrom(process.argv.slice(2)), { timeout: MS_FOR_ONE_ROUND });
    for (const [name, check] of Object.entries(checks)) {
        current = name;
        await check();
        console.log(`ok ${name}`);
    }
    current = 'close';
    await client.close();
} catch (error) {
    await client.close().catch(() => {});
    fail(error instanceof Error ? error.message : String(error));
}
