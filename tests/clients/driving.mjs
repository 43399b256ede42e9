// The common part of the drivers for the two TypeScript SDKs: the job, the scripted person and the outcomes. See README.md.

import { text as readAll } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';

export const MS_FOR_ONE_CALL = 60_000;
const MS_FOR_NOTIFICATIONS = 10_000;

export const CLIENT_INFO = { name: 'refrain-tests', version: '0' };
export const CAPABILITIES = { elicitation: { form: {}, url: {} }, sampling: { tools: {} }, roots: {} };

// Resolves all its waits once there are as many as it has parties.
class Barrier {
    #waiting = [];

    constructor(parties) {
        this.parties = parties;
    }

    async wait() {
        const passed = new Promise((pass) => void this.#waiting.push(pass));
        if (this.#waiting.length === this.parties) {
            for (const pass of this.#waiting.splice(0)) pass();
        }
        await passed;
    }
}

// The person and the model behind a client. Follows the script of the current call, and records the asks.
export class Person {
    constructor() {
        this.begin({});
    }

    begin({ person = {} }, barrier) {
        Object.assign(this, { script: person, barrier, asked: [], progress: [], logs: [] });
    }

    // With a barrier, no ask is answered before every call has one.
    async record(ask) {
        this.asked.push(ask);
        await this.barrier?.wait();
    }

    async elicit({ params }) {
        const { action = 'accept', fields = {} } = this.script;
        if (params.mode === 'url') {
            await this.record(`url: ${params.message} ${params.url}`);
            return { action };
        }
        await this.record(`form: ${params.message}`);
        if (action !== 'accept') return { action };
        const known = Object.keys(params.requestedSchema.properties).filter((name) => name in fields);
        return { action, content: Object.fromEntries(known.map((name) => [name, fields[name]])) };
    }

    async sample({ params: { messages, tools } }) {
        const blocks = messages.flatMap((message) => message.content);
        const question = blocks.filter((block) => block.type === 'text').map((block) => block.text).join(' ');
        const answer = { role: 'assistant', model: 'scripted' };
        if (tools?.length) {
            const [{ name }] = tools;
            await this.record(`model with ${name}: ${question}`);
            const used = { type: 'tool_use', id: 'use-1', name, input: this.script.input };
            return { ...answer, content: [used], stopReason: 'toolUse' };
        }
        await this.record(`model: ${question}`);
        return { ...answer, content: { type: 'text', text: this.script.said }, stopReason: 'endTurn' };
    }

    roots() {
        // Without the barrier: some servers ask for the roots at any time.
        this.asked.push('roots');
        return { roots: (this.script.roots ?? []).map((name) => ({ uri: `file:///${name}`, name })) };
    }

    noteLog({ params: { level, data } }) {
        this.logs.push(`${level}: ${typeof data === 'string' ? data : JSON.stringify(data)}`);
    }

    // Waits for the notifications that the call expects: they may be handled after its result.
    async notified({ progress = 0, logs = 0 }) {
        const deadline = Date.now() + MS_FOR_NOTIFICATIONS;
        while ((this.progress.length < progress || this.logs.length < logs) && Date.now() < deadline) await sleep(10);
    }
}

function request(client, call, person) {
    const onprogress = ({ progress }) => void person.progress.push(progress);
    const options = { timeout: MS_FOR_ONE_CALL, onprogress };
    const argument = call.complete;
    if (call.tool) return client.callTool({ name: call.tool, arguments: call.arguments }, options);
    if (argument && call.prompt) return client.complete({ ref: { type: 'ref/prompt', name: call.prompt }, argument });
    if (argument) return client.complete({ ref: { type: 'ref/resource', uri: call.template }, argument });
    if (call.prompt) return client.getPrompt({ name: call.prompt, arguments: call.arguments }, options);
    if (call.resource) return client.readResource({ uri: call.resource }, options);
    const lists = {
        tools: () => client.listTools(),
        prompts: () => client.listPrompts(),
        resources: () => client.listResources(),
        resource_templates: () => client.listResourceTemplates()
    };
    return lists[call.list]();
}

async function perform(client, call, person, barrier) {
    person.begin(call, barrier);
    const outcome = {};
    try {
        outcome.result = await request(client, call, person);
        await person.notified(call);
    } catch (error) {
        outcome.error = `${error.name}: ${error.message}`;
    }
    const { asked, progress, logs } = person;
    return { ...outcome, asked, progress, logs };
}

async function performAlone(connect, target, call, barrier) {
    const person = new Person();
    const client = await connect(target, person);
    try {
        return await perform(client, call, person, barrier);
    } finally {
        await client.close();
    }
}

async function visit(connect, target, checks) {
    const person = new Person();
    const client = await connect(target, person);
    for (const { name, calls } of checks) {
        // Calls at the same time have connections of their own. No ask is answered before all of them are open.
        const barrier = new Barrier(calls.length);
        const outcomes =
            calls.length > 1
                ? await Promise.all(calls.map((call) => performAlone(connect, target, call, barrier)))
                : [await perform(client, calls[0], person)];
        console.log(JSON.stringify({ target: target.name, check: name, outcomes }));
    }
    await client.close();
}

// Does the job on standard input. `connect` opens a connection to a target for a person.
export async function drive(connect) {
    const { targets, checks } = JSON.parse(await readAll(process.stdin));
    try {
        for (const target of targets) await visit(connect, target, checks);
    } catch (error) {
        console.error(error);
        process.exit(1);
    }
}
