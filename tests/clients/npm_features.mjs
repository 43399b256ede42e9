#!/usr/bin/env node
// Goes through every feature of `refrain-conformance server` with the TypeScript SDK
// (@modelcontextprotocol/client 2.4.0).
//
//     npm_features.mjs URL
//     npm_features.mjs --stdio COMMAND [ARGUMENT...]
//
// Each check opens a connection of its own. It prints one line `ok NAME` or `FAIL NAME: REASON` for
// each check and a last line with their number, and ends with status 1 if one failed.
//
// The packages are found through the link `node_modules` that scripts/tools puts beside this file.

import { CHECKS } from './npm_checks/support.mjs';
import './npm_checks/calls.mjs';
import './npm_checks/rounds.mjs';
import './npm_checks/extras.mjs';
import './npm_checks/changes.mjs';

const MS_FOR_ONE_CHECK = 120_000;

function serverFrom([first, ...rest]) {
    if (first === '--stdio' && rest.length > 0) return { command: rest };
    if (first === undefined || first.startsWith('-') || rest.length > 0) {
        console.error('usage: npm_features.mjs URL | --stdio COMMAND [ARGUMENT...]');
        process.exit(2);
    }
    return { url: first };
}

async function inTime(promise) {
    let timer;
    const late = new Promise((_, reject) => {
        const error = new Error(`no end after ${MS_FOR_ONE_CHECK / 1000} seconds`);
        timer = setTimeout(() => reject(error), MS_FOR_ONE_CHECK);
    });
    try {
        await Promise.race([promise, late]);
    } finally {
        clearTimeout(timer);
    }
}

const server = serverFrom(process.argv.slice(2));
let failed = 0;
for (const [name, check] of CHECKS) {
    try {
        await inTime(check(server));
        console.log(`ok ${name}`);
    } catch (error) {
        failed += 1;
        console.log(`FAIL ${name}: ${error instanceof Error ? error.message : error}`);
    }
}
console.log(`${CHECKS.size} checks, ${failed} failed`);
process.exit(failed > 0 ? 1 : 0);
