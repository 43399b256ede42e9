// Calls one tool with the TypeScript client, and prints its text.
//
//     npm_call.mjs URL TOOL
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [url, name] = process.argv.slice(2);
const client = new Client({ name: "npm-call", version: "1" }, { versionNegotiation: { mode: "auto" } });
try {
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    const result = await client.callTool({ name, arguments: {} });
    console.log(result.content[0].text);
    await client.close();
} catch (error) {
    console.error(`FAIL ${error.message}`);
    process.exit(1);
}
