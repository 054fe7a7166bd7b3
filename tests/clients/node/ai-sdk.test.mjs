// The AI SDK over chats, responses and messages.
import assert from "node:assert/strict";
import test from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { GREETING, MODEL, key, v1 } from "./server.mjs";

const models = {
  compatible: createOpenAICompatible({ name: "tandem", baseURL: v1, apiKey: key, supportsStructuredOutputs: true })(MODEL),
  responses: createOpenAI({ baseURL: v1, apiKey: key }).responses(MODEL),
  messages: createAnthropic({ baseURL: v1, apiKey: key })(MODEL),
};
const weather = tool({
  description: "The weather of a place.",
  inputSchema: z.object({ place: z.string() }),
  execute: async ({ place }) => `20 degrees in ${place}`,
});

for (const [kind, model] of Object.entries(models)) {
  const fields = { model, prompt: "Hello", maxRetries: 0, maxOutputTokens: 500 };

  test(`chat (${kind})`, async () => {
    assert.equal((await generateText(fields)).text, GREETING);
  });

  test(`stream (${kind})`, async () => {
    assert.equal(await streamText(fields).text, GREETING);
  });

  test(`tools (${kind})`, async () => {
    const tools = { weather };
    const answer = await generateText({ ...fields, tools, stopWhen: stepCountIs(3) });
    assert.equal(answer.steps[0].toolCalls[0].input.place, "Bern");
    assert.match(answer.text, /^The tool says: .*20 degrees in Bern/);
  });

  if (kind !== "messages") {
    test(`structured (${kind})`, async () => {
      const schema = z.object({ name: z.string(), people: z.number().int() });
      const answer = await generateText({ ...fields, output: Output.object({ schema }) });
      assert.deepEqual(answer.output, { name: "Bern", people: 20 });
    });
  }
}
