// Subscriptions: who listens is told of what changes while the server runs.

import { User, call, check, connected, finalText, same } from './support.mjs';

// The notifications of a client's subscriptions, in the order in which they come.
class News {
    #waiting = [];
    #come = [];

    constructor(client) {
        for (const method of ['tools/list_changed', 'prompts/list_changed', 'resources/list_changed', 'resources/updated']) {
            client.setNotificationHandler(`notifications/${method}`, ({ params }) => {
                const news = params?.uri ? `${method} ${params.uri}` : method;
                const next = this.#waiting.shift();
                if (next) next(news);
                else this.#come.push(news);
            });
        }
    }

    next() {
        if (this.#come.length > 0) return Promise.resolve(this.#come.shift());
        return new Promise((come) => this.#waiting.push(come));
    }
}

const trigger = async (client, what, args) => finalText(await call(client, `test_trigger_${what}`, args));

// Has something added and removed, and sees each change as a notification and in the list.
async function listedTwice(server, { what, name, filter, method, names }) {
    await connected(server, new User(), async (client) => {
        const news = new News(client);
        const subscription = await client.listen(filter);
        same(subscription.honoredFilter, filter, 'honored');
        for (const outcome of ['added', 'removed']) {
            same(await trigger(client, what), outcome, what);
            same(await news.next(), method, 'told');
            same((await names(client)).includes(name), outcome === 'added', `${name} is listed`);
        }
    });
}

check('subscriptions: tools', (server) =>
    listedTwice(server, {
        what: 'tool_change',
        name: 'test_added_tool',
        filter: { toolsListChanged: true },
        method: 'tools/list_changed',
        names: async (client) => (await client.listTools()).tools.map((tool) => tool.name)
    }));

check('subscriptions: prompts', (server) =>
    listedTwice(server, {
        what: 'prompt_change',
        name: 'test_added_prompt',
        filter: { promptsListChanged: true },
        method: 'prompts/list_changed',
        names: async (client) => (await client.listPrompts()).prompts.map((prompt) => prompt.name)
    }));

check('subscriptions: resources', (server) =>
    listedTwice(server, {
        what: 'resource_change',
        name: 'test://added',
        filter: { resourcesListChanged: true },
        method: 'resources/list_changed',
        names: async (client) => (await client.listResources()).resources.map((resource) => resource.uri)
    }));

check('subscriptions: updates of a resource', (server) =>
    connected(server, new User(), async (client) => {
        const uri = 'test://static-text';
        const news = new News(client);
        const filter = { resourceSubscriptions: [uri] };
        const subscription = await client.listen(filter);
        same(subscription.honoredFilter, filter, 'honored');
        // Of another resource nothing is told.
        await trigger(client, 'resource_update', { uri: 'test://static-binary' });
        await trigger(client, 'resource_update', { uri });
        same(await news.next(), `resources/updated ${uri}`, 'told');
    }));

check('subscriptions: only what was asked for', (server) =>
    connected(server, new User(), async (client) => {
        const news = new News(client);
        await client.listen({ promptsListChanged: true });
        for (const outcome of ['added', 'removed']) {
            same(await trigger(client, 'tool_change'), outcome, 'tool');
            same(await trigger(client, 'resource_change'), outcome, 'resource');
            same(await trigger(client, 'prompt_change'), outcome, 'prompt');
            // Whatever else the server sent would come before.
            same(await news.next(), 'prompts/list_changed', 'told');
        }
    }));

check('subscriptions: two at once', (server) =>
    connected(server, new User(), async (client) => {
        const news = new News(client);
        await client.listen({ toolsListChanged: true });
        const second = await client.listen({ promptsListChanged: true });
        await trigger(client, 'tool_change');
        same(await news.next(), 'tools/list_changed', 'told');
        await trigger(client, 'prompt_change');
        same(await news.next(), 'prompts/list_changed', 'told');
        // The first one goes on when the second is closed.
        await second.close();
        await call(client, 'test_subscriptions', { count: 1 });
        await trigger(client, 'prompt_change');
        await trigger(client, 'tool_change');
        same(await news.next(), 'tools/list_changed', 'told');
    }));

check('subscriptions: ended by the client', (server) =>
    connected(server, new User(), async (client) => {
        const subscription = await client.listen({ toolsListChanged: true });
        await call(client, 'test_subscriptions', { count: 1 });
        await subscription.close();
        same(await subscription.closed, 'local', 'end');
        same(finalText(await call(client, 'test_subscriptions', { count: 0 })), '0 are open', 'subscriptions');
    }));

// The last check: over HTTP it takes the server from all others.
check('subscriptions: ended by the server', (server) =>
    connected(server, new User(), async (client) => {
        const subscription = await client.listen({ toolsListChanged: true });
        process.kill(Number(finalText(await call(client, 'test_process_id'))), 'SIGTERM');
        same(await subscription.closed, 'graceful', 'end');
    }));
