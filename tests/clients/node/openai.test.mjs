// OpenAI's own client for node: chats, tools, responses.
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";
import { GREETING, MODEL, key, v1 } from "./server.mjs";

const client = new OpenAI({ baseURL: v1, apiKey: key, maxRetries: 0 });
const user = { role: "user", content: "Hello" };
const place = { type: "object", properties: { place: { type: "string" } }, required: ["place"] };

test("chat", async () => {
  const answer = await client.chat.completions.create({ model: MODEL, messages: [user] });
  assert.equal(answer.choices[0].message.content, GREETING);
  const again = [user, answer.choices[0].message, user];
  assert.ok((await client.chat.completions.create({ model: MODEL, messages: again })).choices);
});

test("stream", async () => {
  const runner = client.chat.completions.stream({ model: MODEL, messages: [user] });
  assert.equal(await runner.finalContent(), GREETING);
});

test("tools", async () => {
  const weather = {
    name: "weather",
    parameters: place,
    parse: JSON.parse,
    function: ({ place }) => `20 degrees in ${place}`,
  };
  for (const stream of [false, true]) {
    const runner = client.chat.completions.runTools({
      model: MODEL,
      messages: [user],
      stream,
      tools: [{ type: "function", function: weather }],
    });
    assert.equal(await runner.finalContent(), "The tool says: 20 degrees in Bern");
  }
});

test("errors", async () => {
  const bad = client.chat.completions.create({ model: MODEL, messages: [user], temperature: 7 });
  await assert.rejects(bad, (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
});

test("responses", async () => {
  const answer = await client.responses.create({ model: MODEL, input: "Hello" });
  assert.equal(answer.output_text, GREETING);
  const stream = client.responses.stream({ model: MODEL, input: "Hello" });
  assert.equal((await stream.finalResponse()).output_text, GREETING);
});
