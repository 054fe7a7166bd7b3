// The playground's reader of server-sent events, wherever their bytes are cut.
import assert from "node:assert/strict";
import test from "node:test";
import { events } from "../../../frontend/tandem_frontend/playground/events.js";

const SAID = ['{"text":"Grüße, 世界 🚲"}', "two\nlines", "[DONE]"];
const BYTES = new TextEncoder().encode(
  `: keep-alive\r\n\r\ndata: ${SAID[0]}\r\n\r\nevent: x\ndata:two\ndata: lines\n\n: more\n\ndata: ${SAID[2]}\n\ndata: half`,
);

async function read(...cuts) {
  const places = [0, ...cuts, BYTES.length];
  const pieces = places.slice(1).map((end, place) => BYTES.slice(places[place], end));
  const found = [];
  for await (const data of events(ReadableStream.from(pieces))) found.push(data);
  return found;
}

test("events are the same wherever their bytes are cut", async () => {
  for (let cut = 0; cut <= BYTES.length; cut++) {
    assert.deepEqual(await read(cut), SAID, `cut at ${cut}`);
  }
  assert.deepEqual(await read(...BYTES.keys()), SAID, "each byte by itself");
});

test("a reader that goes ends the stream, and one that fails says so", async () => {
  let ended = "";
  const body = new ReadableStream({
    start: (controller) => controller.enqueue(BYTES),
    cancel: () => (ended = "cancelled"),
  });
  for await (const data of events(body)) {
    assert.equal(data, SAID[0]);
    break;
  }
  assert.equal(ended, "cancelled");
  const failing = new ReadableStream({ start: (controller) => controller.error(new TypeError("gone")) });
  await assert.rejects(events(failing).next(), /gone/);
});

test("comments are told apart from events, each once, wherever they are cut", async () => {
  const bytes = new TextEncoder().encode(`: waiting: no slot\n\n:bare\r\n\ndata: x\n\n: keep-alive\n\n`);
  for (let cut = 0; cut <= bytes.length; cut++) {
    const told = [];
    const found = [];
    const body = ReadableStream.from([bytes.slice(0, cut), bytes.slice(cut)]);
    for await (const data of events(body, (text) => told.push(text))) found.push(data);
    assert.deepEqual(told, ["waiting: no slot", "bare", "keep-alive"], `cut at ${cut}`);
    assert.deepEqual(found, ["x"]);
  }
});
