// Judges what the conformance suite recorded for one scenario: `node verdict.mjs RESULTS`.
//
// A scenario passes (status 0) only if something was checked, and nothing failed, was warned about or
// was skipped. Status 1: it does not pass. Status 2: the suite recorded nothing. What did not pass is
// printed with one entry for each check.

import { globSync, readFileSync } from 'node:fs';

const results = process.argv[2];
const files = globSync('**/checks.json', { cwd: results });
const checks = files.flatMap((file) => JSON.parse(readFileSync(`${results}/${file}`, 'utf8')));
const having = (...statuses) => checks.filter(({ status }) => statuses.includes(status));

for (const { id, status, description, errorMessage } of having('FAILURE', 'WARNING', 'SKIPPED')) {
    console.log(`${status} ${id}: ${errorMessage ?? description}`);
}

if (files.length === 0) process.exit(2);
if (having('FAILURE', 'WARNING', 'SKIPPED').length > 0) process.exit(1);

// Every scenario that exchanged a message has this check, so it alone proves nothing.
if (having('SUCCESS').every(({ id }) => id === 'wire-schema-valid')) {
    console.log('nothing was checked');
    process.exit(1);
}
