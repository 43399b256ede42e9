// What every check needs: the list of checks, the person behind the client, and a connection.

import assert from 'node:assert/strict';
import { Client, ProtocolError, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

export const PROTOCOL_VERSION = '2026-07-28';
export const MODEL_ANSWER = 'Paris, says the model.';
export const ROOTS = ['file:///srv/one', 'file:///srv/two'];
const MS_FOR_ONE_ROUND = 60_000;
const CAPABILITIES = { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} };

// The checks by name, in the order they are written in.
export const CHECKS = new Map();

export function check(name, run) {
    assert(!CHECKS.has(name), `two checks are called '${name}'`);
    CHECKS.set(name, run);
}

export function same(found, wanted, what) {
    const text = (value) => JSON.stringify(value);
    assert.deepEqual(found, wanted, `${what}: ${text(found)}, not ${text(wanted)}`);
}

// The person and the model behind the client. Answers by the ask's key, and remembers what was asked.
// An answer is what the fields are filled in with, or 'decline', or 'cancel'; a list of these answers
// one ask after the other.
export class User {
    asked = [];
    messages = [];
    forms = [];
    urls = [];
    sampled = [];
    logged = [];
    others = [];

    constructor(answers = {}) {
        const lists = Object.entries(answers).map(([key, answer]) => [key, [answer].flat()]);
        this.answers = Object.fromEntries(lists);
    }

    elicit({ params }, { mcpReq: { id } }) {
        this.asked.push(id);
        this.messages.push(params.message);
        assert(this.answers[id]?.length, `asked '${id}', which has no answer left`);
        const answer = this.answers[id].shift();
        if (typeof answer === 'string') return { action: answer };
        if (params.mode === 'url') {
            this.urls.push(params.url);
            return { action: 'accept' };
        }
        this.forms.push(params.requestedSchema);
        return { action: 'accept', content: answer };
    }

    sample({ params }, { mcpReq: { id } }) {
        this.asked.push(id);
        const blocks = params.messages.flatMap((message) => message.content);
        this.sampled.push(blocks.filter((block) => block.type === 'text').map((block) => block.text).join(' '));
        return {
            role: 'assistant',
            content: { type: 'text', text: MODEL_ANSWER },
            model: 'scripted',
            stopReason: 'endTurn'
        };
    }

    log({ params: { level, data } }) {
        this.logged.push([level, data]);
        this.onLogged?.();
    }

    // Waits for so many log messages.
    hasLogged(count) {
        return new Promise((reached) => {
            this.onLogged = () => void (this.logged.length >= count && reached());
            this.onLogged();
        });
    }

    roots(request, { mcpReq: { id } }) {
        this.asked.push(id);
        return { roots: ROOTS.map((uri) => ({ uri })) };
    }
}

function transportTo({ url, command }) {
    if (url) return new StreamableHTTPClientTransport(new URL(url));
    const [program, ...args] = command;
    return new StdioClientTransport({ command: program, args });
}

// Has `use` work with a client that can be asked everything, unless `options` say otherwise.
export async function connected(server, user, use, { capabilities = CAPABILITIES, ...options } = {}) {
    const client = new Client(
        { name: 'refrain-tests', version: '0' },
        // Pinned: otherwise the SDK falls back to the legacy handshake without a word.
        { capabilities, versionNegotiation: { mode: { pin: PROTOCOL_VERSION } }, ...options }
    );
    if (capabilities.elicitation) {
        client.setRequestHandler('elicitation/create', (request, context) => user.elicit(request, context));
    }
    if (capabilities.sampling) {
        client.setRequestHandler('sampling/createMessage', (request, context) => user.sample(request, context));
    }
    if (capabilities.roots) {
        client.setRequestHandler('roots/list', (request, context) => user.roots(request, context));
    }
    client.setNotificationHandler('notifications/message', (notification) => user.log(notification));
    client.fallbackNotificationHandler = async ({ method }) => void user.others.push(method);
    try {
        await client.connect(transportTo(server), { timeout: MS_FOR_ONE_ROUND });
        same(client.getNegotiatedProtocolVersion(), PROTOCOL_VERSION, 'negotiated');
        await use(client);
    } finally {
        await client.close();
    }
}

export const textOf = ({ content }) =>
    content.filter((block) => block.type === 'text').map((block) => block.text).join('\n');

// The text of a result that is none of an error.
export function finalText(result) {
    assert(!result.isError, `ended with an error: '${textOf(result)}'`);
    return textOf(result);
}

export const call = (client, name, args = {}, options = {}) =>
    client.callTool({ name, arguments: args }, { timeout: MS_FOR_ONE_ROUND, ...options });

// The error that a call ends with, which must have this code.
export async function refused(promise, code) {
    let result;
    try {
        result = await promise;
    } catch (error) {
        assert(error instanceof ProtocolError, `ended with ${error}`);
        same(error.code, code, `error '${error.message}'`);
        return error;
    }
    assert.fail(`answered ${JSON.stringify(result)}, not error ${code}`);
}
