#!/usr/bin/env node
// `@modelcontextprotocol/server-everything` over HTTP, on a port of 127.0.0.1 that is free; prints `listening on URL`.
// The program itself listens on every address of the machine, and reports another port, so that both are done here.

import { Server } from 'node:net';

const listen = Server.prototype.listen;
Server.prototype.listen = function () {
    return listen.call(this, 0, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${this.address().port}/mcp`));
};

await import('@modelcontextprotocol/server-everything/dist/transports/streamableHttp.js');
