// Calls that are done in one round: what is listed, what is answered, progress, logs and cancelling.

import assert from 'node:assert/strict';
import { LOG_LEVEL_META_KEY, ProtocolErrorCode } from '@modelcontextprotocol/client';
import { User, call, check, connected, finalText, refused, same, textOf } from './support.mjs';

const PNG = Buffer.from('\x89PNG\r\n', 'latin1');
const WAV = Buffer.from('RIFF');
const startsWith = (base64, bytes) => Buffer.from(base64, 'base64').subarray(0, bytes.length).equals(bytes);
const isPicture = (block) =>
    block.type === 'image' && block.mimeType === 'image/png' && startsWith(block.data, PNG);

check('discover', (server) =>
    connected(server, new User(), async (client) => {
        const info = client.getServerVersion();
        same(info?.name, 'refrain-conformance', 'server');
        assert(info.version, 'the server has no version');
        const capabilities = client.getServerCapabilities();
        for (const part of ['tools', 'prompts', 'resources']) {
            assert(capabilities[part], `no ${part} in ${JSON.stringify(capabilities)}`);
        }
    }));

check('tools/list', (server) =>
    connected(server, new User(), async (client) => {
        const { tools } = await client.listTools();
        const again = await client.listTools({}, { cacheMode: 'refresh' });
        const names = tools.map((tool) => tool.name);
        same(again.tools.map((tool) => tool.name), names, 'listed again');
        same(names[0], 'test_simple_text', 'the first tool');
        assert(tools.every((tool) => tool.description), 'a tool has no description');
        same(new Set(names).size, names.length, 'different names');
        const { inputSchema } = tools.find((tool) => tool.name === 'test_waiting');
        same(inputSchema.required.toSorted(), ['fate', 'key'], 'required arguments');
    }));

check('tools/call: text', (server) =>
    connected(server, new User(), async (client) => {
        const result = await call(client, 'test_simple_text');
        same(finalText(result), 'This is a simple text response for testing.', 'text');
    }));

check('tools/call: image', (server) =>
    connected(server, new User(), async (client) => {
        const { content } = await call(client, 'test_image_content');
        assert(content.length === 1 && isPicture(content[0]), JSON.stringify(content));
    }));

check('tools/call: audio', (server) =>
    connected(server, new User(), async (client) => {
        const { content } = await call(client, 'test_audio_content');
        same([content.length, content[0].type, content[0].mimeType], [1, 'audio', 'audio/wav'], 'block');
        assert(startsWith(content[0].data, WAV), 'not a WAV file');
    }));

check('tools/call: embedded resource', (server) =>
    connected(server, new User(), async (client) => {
        const { content } = await call(client, 'test_embedded_resource');
        const resource = {
            uri: 'test://embedded-resource',
            mimeType: 'text/plain',
            text: 'This is an embedded resource content.'
        };
        same(content, [{ type: 'resource', resource }], 'content');
    }));

check('tools/call: resource link', (server) =>
    connected(server, new User(), async (client) => {
        const { content } = await call(client, 'test_resource_link');
        const [{ type, uri, name, title, mimeType, size }] = content;
        same(
            [type, uri, name, title, mimeType, size],
            ['resource_link', 'test://static-text', 'static_text', 'A text', 'text/plain', 48],
            'link'
        );
    }));

check('tools/call: mixed contents', (server) =>
    connected(server, new User(), async (client) => {
        const { content } = await call(client, 'test_multiple_content_types');
        same(content.map((block) => block.type), ['text', 'image', 'resource'], 'blocks');
    }));

check('tools/call: error of the tool', (server) =>
    connected(server, new User(), async (client) => {
        const result = await call(client, 'test_error_handling');
        same(result.isError, true, 'isError');
        same(textOf(result), 'This tool intentionally returns an error for testing', 'text');
    }));

check('tools/call: unknown tool', (server) =>
    connected(server, new User(), async (client) => {
        await refused(call(client, 'no_such_tool'), ProtocolErrorCode.InvalidParams);
    }));

check('tools/call: wrong arguments', (server) =>
    connected(server, new User(), async (client) => {
        const result = await call(client, 'test_waiting', { key: 5 });
        same(result.isError, true, 'isError');
    }));

check('tools/call: many at once', (server) =>
    connected(server, new User(), async (client) => {
        const numbers = [...Array(20).keys()];
        const calls = numbers.map((number) =>
            call(client, 'json_schema_2020_12_tool', {
                name: `caller ${number}`,
                contactMethod: 'phone',
                phone: String(number)
            }));
        const answers = (await Promise.all(calls)).map(finalText);
        same(answers, numbers.map((number) => `caller ${number}: ${number}`), 'answers');
    }));

check('progress and logs while the call runs', async (server) => {
    const user = new User();
    const args = { key: 'npm, streaming' };
    const seen = [];
    let result;
    await connected(server, user, async (client) => {
        const progressed = new Promise((reached) => {
            const onprogress = ({ progress, total, message }) => {
                seen.push([progress, total, message]);
                if (progress === 5) reached();
            };
            const params = { name: 'test_stream', arguments: args, _meta: { [LOG_LEVEL_META_KEY]: 'info' } };
            result = client.callTool(params, { onprogress });
        });
        await Promise.race([progressed, result]);
        await Promise.race([user.hasLogged(5), result]);
        await call(client, 'test_release', args);
        same(finalText(await result), 'Released.', 'text');
    });
    const steps = [1, 2, 3, 4, 5];
    same(seen, steps.map((step) => [step, 5, `step ${step}`]), 'progress');
    same(user.logged, steps.map((step) => ['info', `step ${step}`]), 'logged');
});

check('progress: none without a token', async (server) => {
    const user = new User();
    await connected(server, user, async (client) => {
        // Progress of an unknown token is an error to the SDK.
        client.onerror = (error) => void user.others.push(error.message);
        const result = await call(client, 'test_tool_with_progress');
        same(finalText(result), 'The work is done.', 'text');
        same(user.others, [], 'unexpected messages');
    });
});

const LEVELS = ['debug', 'info', 'notice', 'warning', 'error', 'critical', 'alert', 'emergency'];

check('logs from a level on', async (server) => {
    for (const [first, level] of LEVELS.entries()) {
        const user = new User();
        await connected(server, user, async (client) => {
            await client.callTool({ name: 'test_log_levels', _meta: { [LOG_LEVEL_META_KEY]: level } });
            same(user.logged, LEVELS.slice(first).map((name) => [name, name]), `logged from ${level} on`);
        });
    }
});

check('logs: none without a level', async (server) => {
    const user = new User();
    await connected(server, user, async (client) => {
        await call(client, 'test_log_levels');
        await call(client, 'test_logging_tool');
        same([user.logged, user.others], [[], []], 'logged');
    });
});

async function cancel(server, key, withProgress) {
    await connected(server, new User(), async (client) => {
        const abort = new AbortController();
        const options = { signal: abort.signal };
        const progress = new Promise((reached) => {
            if (withProgress) options.onprogress = reached;
            else reached();
        });
        const waiting = call(client, 'test_wait', { key }, options).then(
            (result) => assert.fail(`answered ${JSON.stringify(result)}`),
            (error) => error
        );
        const running = await call(client, 'test_waiting', { key, fate: 'running' });
        same(finalText(running), 'Running', 'before');
        await progress;
        abort.abort('not needed any more');
        const dropped = await call(client, 'test_waiting', { key, fate: 'dropped' });
        same(finalText(dropped), 'Dropped', 'after');
        assert(await waiting, 'the call did not end');
    });
}

check('cancel a call that has sent something', (server) => cancel(server, 'npm, cancelled while streaming', true));
check('cancel a call that has sent nothing', (server) => cancel(server, 'npm, cancelled while silent', false));

check('prompts/list', (server) =>
    connected(server, new User(), async (client) => {
        const { prompts } = await client.listPrompts();
        assert(prompts.every((prompt) => prompt.description), 'a prompt has no description');
        const found = prompts.find((prompt) => prompt.name === 'test_prompt_with_arguments');
        same(
            found.arguments,
            [
                { name: 'arg1', description: 'First test argument.', required: true },
                { name: 'arg2', description: 'Second test argument.', required: true }
            ],
            'arguments'
        );
    }));

check('prompts/get: text', (server) =>
    connected(server, new User(), async (client) => {
        const { messages } = await client.getPrompt({ name: 'test_simple_prompt' });
        const content = { type: 'text', text: 'This is a simple prompt for testing.' };
        same(messages, [{ role: 'user', content }], 'messages');
    }));

check('prompts/get: arguments', (server) =>
    connected(server, new User(), async (client) => {
        const params = { name: 'test_prompt_with_arguments', arguments: { arg1: 'one', arg2: 'two' } };
        const { messages } = await client.getPrompt(params);
        same(messages[0].content.text, "Prompt with arguments: arg1='one', arg2='two'", 'text');
    }));

check('prompts/get: missing argument', (server) =>
    connected(server, new User(), async (client) => {
        const params = { name: 'test_prompt_with_arguments', arguments: { arg1: 'one' } };
        await refused(client.getPrompt(params), ProtocolErrorCode.InvalidParams);
    }));

check('prompts/get: embedded resource', (server) =>
    connected(server, new User(), async (client) => {
        const params = { name: 'test_prompt_with_embedded_resource', arguments: { resourceUri: 'test://any' } };
        const { messages: [first, second] } = await client.getPrompt(params);
        same([first.content.type, first.content.resource.uri], ['resource', 'test://any'], 'first message');
        same(second.content.text, 'Please process the embedded resource above.', 'second message');
    }));

check('prompts/get: image', (server) =>
    connected(server, new User(), async (client) => {
        const { messages: [first, second] } = await client.getPrompt({ name: 'test_prompt_with_image' });
        assert(isPicture(first.content), JSON.stringify(first));
        same(second.content.text, 'Please analyze the image above.', 'second message');
    }));

check('prompts/get: unknown prompt', (server) =>
    connected(server, new User(), async (client) => {
        await refused(client.getPrompt({ name: 'no_such_prompt' }), ProtocolErrorCode.InvalidParams);
    }));

check('resources/list', (server) =>
    connected(server, new User(), async (client) => {
        const { resources } = await client.listResources();
        const types = Object.fromEntries(resources.map((entry) => [entry.uri, entry.mimeType]));
        same(
            [types['test://static-text'], types['test://static-binary']],
            ['text/plain', 'image/png'],
            'media types'
        );
    }));

check('resources/templates/list', (server) =>
    connected(server, new User(), async (client) => {
        const { resourceTemplates } = await client.listResourceTemplates();
        const uris = resourceTemplates.map((entry) => entry.uriTemplate);
        assert(uris.includes('test://template/{id}/data'), `listed ${uris}`);
    }));

check('resources/read: text', (server) =>
    connected(server, new User(), async (client) => {
        const uri = 'test://static-text';
        const { contents } = await client.readResource({ uri });
        const text = 'This is the content of the static text resource.';
        same(contents, [{ uri, mimeType: 'text/plain', text }], 'contents');
    }));

check('resources/read: blob', (server) =>
    connected(server, new User(), async (client) => {
        const { contents } = await client.readResource({ uri: 'test://static-binary' });
        assert(contents.length === 1 && startsWith(contents[0].blob, PNG), 'not a PNG file');
    }));

check('resources/read: template', (server) =>
    connected(server, new User(), async (client) => {
        const { contents } = await client.readResource({ uri: 'test://template/123/data' });
        same(JSON.parse(contents[0].text).data, 'Data for ID: 123', 'data');
    }));

check('resources/read: unknown resource', (server) =>
    connected(server, new User(), async (client) => {
        const uri = 'test://nowhere';
        const error = await refused(client.readResource({ uri }), ProtocolErrorCode.InvalidParams);
        same(error.data, { uri }, 'data');
    }));
