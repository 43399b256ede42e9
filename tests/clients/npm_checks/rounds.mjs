// Calls that ask before they answer.

import assert from 'node:assert/strict';
import { ProtocolErrorCode } from '@modelcontextprotocol/client';
import { MODEL_ANSWER, ROOTS, User, call, check, connected, finalText, refused, same, textOf } from './support.mjs';

const ROUND = 'test_input_required_result_';

// Calls a tool of the server with the answers of a user.
async function ask(server, user, name, use, options) {
    await connected(server, user, async (client) => use(await call(client, name)), options);
}

check('ask: a form', (server) => {
    const user = new User({ user_name: { name: 'Alice' } });
    return ask(server, user, `${ROUND}elicitation`, (result) => {
        same(finalText(result), 'Hello, Alice!', 'text');
        same(user.messages, ['What is your name?'], 'asked');
        same(user.forms[0].properties, { name: { type: 'string' } }, 'fields');
        same(user.forms[0].required, ['name'], 'required');
    });
});

const SIGN_UP = {
    address: 'alice@example.com',
    age: 33,
    height: 1.75,
    public: false,
    howOften: 'daily',
    topics: ['fixes', 'news']
};

check('ask: a field of every kind', (server) => {
    const user = new User({ sign_up: SIGN_UP });
    return ask(server, user, 'test_form', (result) => {
        same(finalText(result), 'alice@example.com, 33, 1.75, false, Daily, [Fixes, News]', 'text');
        const fields = user.forms[0].properties;
        same(
            Object.keys(SIGN_UP).map((name) => fields[name].type),
            ['string', 'integer', 'number', 'boolean', 'string', 'array'],
            'types'
        );
    });
});

check('ask: again, with the reason', (server) => {
    const user = new User({ sign_up: [{ ...SIGN_UP, age: 200 }, SIGN_UP] });
    return ask(server, user, 'test_form', (result) => {
        assert(finalText(result).startsWith('alice@example.com, 33'), textOf(result));
        same(user.asked, ['sign_up', 'sign_up'], 'asked');
        assert(user.messages[1].includes('not accepted'), `asked again with '${user.messages[1]}'`);
    });
});

check('ask: declined', (server) => {
    const user = new User({ user_name: 'decline' });
    return ask(server, user, 'test_outcome', (result) => {
        same([finalText(result), user.asked], ['declined', ['user_name']], 'text and asked');
    });
});

check('ask: cancelled', (server) => {
    const user = new User({ user_name: 'cancel' });
    return ask(server, user, 'test_outcome', (result) => {
        same([finalText(result), user.asked], ['cancelled', ['user_name']], 'text and asked');
    });
});

check('ask: a decline ends the call', (server) => {
    const user = new User({ user_name: 'decline' });
    return ask(server, user, `${ROUND}elicitation`, (result) => {
        assert(result.isError && textOf(result), JSON.stringify(result));
        same(user.asked, ['user_name'], 'asked');
    });
});

check('ask: a URL', (server) => {
    const user = new User({ consent: {} });
    return ask(server, user, 'test_url', (result) => {
        same(finalText(result), 'The page was opened.', 'text');
        same(user.urls, ['https://example.com/consent'], 'opened');
    });
});

check('ask: the model', (server) => {
    const user = new User();
    return ask(server, user, `${ROUND}sampling`, (result) => {
        same(finalText(result), MODEL_ANSWER, 'text');
        same(user.sampled, ['What is the capital of France?'], 'sampled');
    });
});

check('ask: the roots', (server) =>
    ask(server, new User(), `${ROUND}list_roots`, (result) => {
        same(finalText(result), `Your roots: ${ROOTS.join(', ')}`, 'text');
    }));

check('ask: three things in one round', (server) => {
    const user = new User({ user_name: { name: 'Alice' } });
    return ask(server, user, `${ROUND}multiple_inputs`, (result) => {
        same(finalText(result), `Alice: ${MODEL_ANSWER} Your roots: ${ROOTS.join(', ')}`, 'text');
        same(user.asked.toSorted(), ['client_roots', 'greeting', 'user_name'], 'asked');
    });
});

check('ask: one thing after the other', (server) => {
    const user = new User({ step1: { name: 'Alice' }, step2: { color: 'blue' } });
    return ask(server, user, `${ROUND}multi_round`, (result) => {
        same(finalText(result), 'Alice likes blue.', 'text');
        same(user.asked, ['step1', 'step2'], 'asked');
    });
});

check('ask: a step before it is kept', (server) =>
    ask(server, new User({ confirm: { ok: true } }), `${ROUND}request_state`, (result) => {
        same(finalText(result), 'state-ok, confirmed: true', 'text');
    }));

check('ask: after progress', (server) =>
    connected(server, new User({ user_name: { name: 'Alice' } }), async (client) => {
        const seen = [];
        const onprogress = ({ message }) => void seen.push(message);
        const result = await call(client, 'test_streaming_elicitation', {}, { onprogress });
        same(finalText(result), 'Hello, Alice!', 'text');
        // The first round's progress is not sent again by the second. The SDK adds a message of its own for each
        // round, and drops progress that arrives together with the round's result.
        const first = seen.filter((message) => message === 'A name is needed.');
        assert(first.length <= 1, `the first round's progress came twice: ${JSON.stringify(seen)}`);
    }));

check('ask: from a prompt', (server) =>
    connected(server, new User({ user_context: { context: 'a rainy day' } }), async (client) => {
        const { messages } = await client.getPrompt({ name: `${ROUND}prompt` });
        same(messages[0].content.text, 'Use this context: a rainy day', 'text');
    }));

check('ask: from a resource', (server) =>
    connected(server, new User({ reader: { name: 'Alice' } }), async (client) => {
        const { contents } = await client.readResource({ uri: 'test://asking' });
        same(contents[0].text, 'This was written for Alice.', 'text');
    }));

check('ask: what the client cannot be asked', (server) =>
    connected(
        server,
        new User(),
        async (client) => {
            const missing = ProtocolErrorCode.MissingRequiredClientCapability;
            const error = await refused(call(client, 'test_missing_capability'), missing);
            same(error.data, { requiredCapabilities: { sampling: {} } }, 'data');
        },
        { capabilities: { elicitation: { form: {} } } }
    ));

check('ask: only what the client can be asked', (server) =>
    ask(
        server,
        new User(),
        `${ROUND}capabilities`,
        (result) => same(finalText(result), `greeting: ${MODEL_ANSWER}; roots: ${ROOTS.join(', ')}`, 'text'),
        { capabilities: { sampling: {}, roots: {} } }
    ));

// One round of a tool, without the SDK's loop.
function round(client, name, { answers, state } = {}) {
    const inputResponses = answers && Object.fromEntries(
        Object.entries(answers).map(([key, content]) => [key, { action: 'accept', content }])
    );
    const params = { name, arguments: {}, ...(answers && { inputResponses }), ...(state && { requestState: state }) };
    return client.callTool(params, { allowInputRequired: true });
}

check('rounds by hand', (server) =>
    connected(server, new User(), async (client) => {
        const name = `${ROUND}multi_round`;
        const first = await round(client, name);
        same([first.resultType, Object.keys(first.inputRequests)], ['input_required', ['step1']], 'first');
        const second = await round(client, name, { answers: { step1: { name: 'Alice' } }, state: first.requestState });
        same([second.resultType, Object.keys(second.inputRequests)], ['input_required', ['step2']], 'second');
        assert.notEqual(second.requestState, first.requestState, 'the state is the same in both rounds');
        // The same state twice: the flow goes on from there both times.
        for (const color of ['blue', 'green']) {
            const last = await round(client, name, { answers: { step2: { color } }, state: second.requestState });
            same(finalText(last), `Alice likes ${color}.`, 'text');
        }
    }));

check('a changed state is refused', (server) =>
    connected(server, new User(), async (client) => {
        const name = `${ROUND}tampered_state`;
        const { requestState } = await round(client, name);
        const answers = { confirm: { ok: true } };
        const tampered = round(client, name, { answers, state: `${requestState}-TAMPERED` });
        await refused(tampered, ProtocolErrorCode.InvalidParams);
        // Nor does it fit another call.
        await refused(round(client, `${ROUND}elicitation`, { state: requestState }), ProtocolErrorCode.InvalidParams);
    }));
