#!/usr/bin/env node
// Starts the binary for this platform. npm installs it as an optional dependency of this package.
"use strict";
const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const platform = `refrain-cli-${process.platform}-${process.arch}`;

function fail(message) {
    console.error(`error: ${message}`);
    process.exit(1);
}

function findBinary() {
    try {
        return require.resolve(`${platform}/refrain`);
    } catch {
        fail(`the package ${platform} is not installed\n` +
            "hint: install with optional dependencies; if this platform has no package, run `cargo install refrain-cli`");
    }
}

const child = spawn(findBinary(), process.argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => fail(`cannot start refrain: ${error.message}`));
child.on("exit", (code, signal) => process.exit(signal ? 128 + constants.signals[signal] : code));
for (const signal of ["SIGHUP", "SIGINT", "SIGTERM"]) {
    // A terminal sends SIGINT to the child too, and a second one would stop it at once.
    const isFromTerminal = signal === "SIGINT" && process.stdin.isTTY;
    process.on(signal, () => isFromTerminal || child.kill(signal));
}
