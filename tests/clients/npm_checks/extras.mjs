// What is shown and promised about things: pages, suggestions, structured content, icons, caching, headers.

import assert from 'node:assert/strict';
import { ProtocolErrorCode } from '@modelcontextprotocol/client';
import { User, call, check, connected, finalText, refused, same, textOf } from './support.mjs';

const ICON = 'data:image/svg+xml;base64,';
const PAGE_SIZE = 2;

check('discover: what is shown of the server', (server) =>
    connected(server, new User(), async (client) => {
        const { title, description, icons } = client.getServerVersion();
        same(title, "Refrain's conformance server", 'title');
        same(description, "Everything that the protocol's conformance suite calls.", 'description');
        assert(icons[0].src.startsWith(ICON), `icons ${JSON.stringify(icons)}`);
        same(client.getInstructions(), 'Call the tools that the scenario names.', 'instructions');
        const { extensions } = client.getServerCapabilities();
        const expected = {
            'com.example/sample': { verbose: true },
            'io.modelcontextprotocol/tasks': {},
            'refrain/callId': {},
        };
        same(extensions, expected, 'extensions');
    }));

// Every list of the client: how a page is fetched, what the entries are called, and what they are known by.
const lists = (client) => [
    [(params) => client.listTools(params), 'tools', 'name'],
    [(params) => client.listPrompts(params), 'prompts', 'name'],
    [(params) => client.listResources(params), 'resources', 'uri'],
    [(params) => client.listResourceTemplates(params), 'resourceTemplates', 'uriTemplate']
];

check('pages: every entry once, in order', async (server) => {
    await connected(server, new User(), async (client) => {
        // Without a cursor the SDK fetches all pages and puts them together.
        for (const [list, part, key] of lists(client).slice(0, 3)) {
            const names = (await list())[part].map((entry) => entry[key]);
            assert(names.length > PAGE_SIZE, `only ${names.length} ${part}`);
            same(new Set(names).size, names.length, `different ${part}`);
            same((await list())[part].map((entry) => entry[key]), names, `${part} listed again`);
        }
    });
    // The pages themselves are seen with a limit of one, where the SDK gives up after the first.
    await connected(
        server,
        new User(),
        async (client) => {
            for (const [list, part] of lists(client).slice(0, 3)) {
                await assert.rejects(list(), /pages/i, `${part} have one page only`);
            }
        },
        { listMaxPages: 1 }
    );
});

check('pages: a wrong cursor is refused', (server) =>
    connected(server, new User(), async (client) => {
        for (const [list] of lists(client)) await refused(list({ cursor: 'nowhere' }), ProtocolErrorCode.InvalidParams);
    }));

check("completion: a prompt's argument", (server) =>
    connected(server, new User(), async (client) => {
        assert(client.getServerCapabilities().completions, 'no completions in the capabilities');
        const ref = { type: 'ref/prompt', name: 'test_prompt_with_arguments' };
        const { completion } = await client.complete({ ref, argument: { name: 'arg1', value: 'par' } });
        same(completion, { values: ['paris', 'park', 'party'], total: 3, hasMore: false }, 'suggested');
        const nothing = await client.complete({ ref, argument: { name: 'arg2', value: 'par' } });
        same(nothing.completion.values, [], 'suggested for an argument without suggestions');
        const unknown = { type: 'ref/prompt', name: 'no_such_prompt' };
        const refusedCall = client.complete({ ref: unknown, argument: { name: 'arg1', value: '' } });
        await refused(refusedCall, ProtocolErrorCode.InvalidParams);
    }));

check("completion: a template's variable", (server) =>
    connected(server, new User(), async (client) => {
        const ref = { type: 'ref/resource', uri: 'test://template/{id}/data' };
        const argument = { name: 'id', value: '12' };
        const { completion } = await client.complete({ ref, argument, context: { arguments: { other: '1' } } });
        same(completion.values, ['123', '124'], 'suggested');
    }));

check('structured content', (server) =>
    connected(server, new User(), async (client) => {
        const { tools } = await client.listTools();
        const { outputSchema } = tools.find((tool) => tool.name === 'test_structured_content');
        same(outputSchema.properties.temperature.type, 'number', 'type of the temperature');
        // The SDK knows the schema by now, and checks the content against it.
        const result = await call(client, 'test_structured_content', { town: 'Ulm' });
        const wanted = { town: 'Ulm', temperature: 21.5, conditions: ['sunny', 'dry'] };
        same(result.structuredContent, wanted, 'content');
        same(JSON.parse(textOf(result)), wanted, 'the same as text');
    }));

check('title, icon, annotations and _meta', (server) =>
    connected(server, new User(), async (client) => {
        const { tools } = await client.listTools();
        const tool = tools.find((entry) => entry.name === 'test_structured_content');
        same(tool.title, 'Structured content', 'title');
        assert(tool.icons[0].src.startsWith(ICON), `icons ${JSON.stringify(tool.icons)}`);
        same(tool.annotations, { readOnlyHint: true }, 'annotations');
        same(tool._meta, { 'com.example/group': 'samples' }, '_meta');
        const { resources } = await client.listResources();
        const text = resources.find((entry) => entry.uri === 'test://static-text');
        same(text.title, 'Static text', 'title of a resource');
    }));

const SHOWN_ICON = {
    src: 'https://example.com/icon.png',
    mimeType: 'image/png',
    sizes: ['48x48', '96x96'],
    theme: 'dark'
};
const SHOWN_ANNOTATIONS = {
    audience: ['user', 'assistant'],
    priority: 0.5,
    lastModified: '2026-07-28T12:00:00Z'
};

check('all that is shown of a prompt, a resource and a template', (server) =>
    connected(server, new User(), async (client) => {
        const { prompts } = await client.listPrompts();
        const { resources } = await client.listResources();
        const { resourceTemplates } = await client.listResourceTemplates();
        const prompt = prompts.find((entry) => entry.name === 'test_shown_prompt');
        const resource = resources.find((entry) => entry.uri === 'test://shown');
        const template = resourceTemplates.find((entry) => entry.uriTemplate === 'test://shown/{name}');
        for (const [entry, title, group] of [
            [prompt, 'A prompt', 'prompts'],
            [resource, 'A resource', 'resources'],
            [template, 'A template', 'templates']
        ]) {
            same([entry.title, entry.icons, entry._meta], [title, [SHOWN_ICON], { 'com.example/group': group }], title);
        }
        same(resource.size, 12, 'size of the resource');
        same(resource.annotations, SHOWN_ANNOTATIONS, 'annotations of the resource');
        same(template.annotations, SHOWN_ANNOTATIONS, 'annotations of the template');
    }));

check('annotations of content', (server) =>
    connected(server, new User(), async (client) => {
        const { content: [text, link] } = await call(client, 'test_annotated_content');
        same(text.annotations, SHOWN_ANNOTATIONS, 'annotations of a text');
        same(link.annotations, SHOWN_ANNOTATIONS, 'annotations of a link');
        same(link._meta, { 'com.example/group': 'links' }, '_meta of a link');
    }));

check('caching hints', (server) =>
    connected(server, new User(), async (client) => {
        const found = {
            discover: client.getDiscoverResult(),
            tools: await client.listTools(),
            prompts: await client.listPrompts(),
            resources: await client.listResources(),
            templates: await client.listResourceTemplates(),
            text: await client.readResource({ uri: 'test://static-text' }),
            blob: await client.readResource({ uri: 'test://static-binary' })
        };
        const hints = Object.entries(found).map(([name, { cacheScope, ttlMs }]) => [name, cacheScope, ttlMs]);
        same(
            hints,
            [
                ['discover', 'public', 3_600_000],
                ['tools', 'private', 0],
                ['prompts', 'private', 0],
                ['resources', 'private', 0],
                ['templates', 'public', 3_600_000],
                ['text', 'public', 60_000],
                ['blob', 'private', 0]
            ],
            'hints'
        );
    }));

check('x-mcp-header', (server) =>
    connected(server, new User(), async (client) => {
        // The SDK mirrors what the listed schema marks; over HTTP the server refuses a call without it.
        await client.listTools();
        for (const region of ['eu-west-1', 'Zürich, 1. Stock', ' padded ']) {
            const result = await call(client, 'test_x_mcp_header', { region, limit: 42 });
            same(finalText(result), `42 rows from ${region}`, 'text');
        }
    }));

check('x-mcp-header: of a tool that was not listed', (server) =>
    connected(server, new User(), async (client) => {
        const result = await call(client, 'test_x_mcp_header', { region: 'eu-west-1' });
        same(finalText(result), '0 rows from eu-west-1', 'text');
    }));
