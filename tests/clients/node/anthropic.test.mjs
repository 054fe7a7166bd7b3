// Anthropic's own client for node.
import assert from "node:assert/strict";
import test from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { GREETING, MODEL, key, root } from "./server.mjs";

const client = new Anthropic({ baseURL: root, apiKey: key, maxRetries: 0 });
const fields = { model: MODEL, max_tokens: 100, messages: [{ role: "user", content: "Hello" }] };

test("chat", async () => {
  assert.equal((await client.messages.create(fields)).content[0].text, GREETING);
});

test("stream", async () => {
  assert.equal(await client.messages.stream(fields).finalText(), GREETING);
});

test("tools", async () => {
  const tools = [
    { name: "weather", input_schema: { type: "object", properties: { place: { type: "string" } } } },
  ];
  const message = await client.messages.stream({ ...fields, tools }).finalMessage();
  assert.equal(message.stop_reason, "tool_use");
  assert.deepEqual(message.content.at(-1).input, { place: "Bern" });
});
