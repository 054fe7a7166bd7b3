// The server's API, as far as this page uses it. Whatever fails is a Failure.

import { events } from "./events.js";

const LONGEST_OTHER_ERROR = 300;
const WAITING = "waiting: ";

export class Failure extends Error {
  // `error`: what the server said: {message, code, type, param}. A failure that no server told of
  // has a message alone.
  constructor(error, { status = null, traceId = "", retryAfter = "" } = {}) {
    super(error.message);
    this.code = error.code ?? "";
    this.param = error.param ?? "";
    this.status = status;
    this.traceId = traceId;
    this.retryAfter = retryAfter;
  }
}

// What the server says of each of its models.
export async function models(key) {
  const response = await request("v1/models", key, {});
  return (await response.json()).data;
}

// The trace id of an answer, and its chunks as they come; an error event among them is thrown.
// `waits` is told what the answer waits for, as the server says it before the first chunk.
export async function chat(body, key, signal, waits) {
  const response = await request("v1/chat/completions", key, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const traceId = traceIdOf(response);
  return { traceId, chunks: chunks(response.body, traceId, waits) };
}

async function request(path, key, { headers = {}, ...options }) {
  if (key) headers = { ...headers, authorization: `Bearer ${key}` };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Failure({ message: `No answer came: ${error.message}` });
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  const head = {
    status: response.status,
    traceId: traceIdOf(response),
    retryAfter: response.headers.get("retry-after") ?? "",
  };
  try {
    return new Failure(JSON.parse(text).error, head);
  } catch {
    // Not this server's words: a proxy's in front of it.
    return new Failure({ message: text.slice(0, LONGEST_OTHER_ERROR) || response.statusText }, head);
  }
}

async function* chunks(body, traceId, waits) {
  let whole = false;
  const comment = (text) => text.startsWith(WAITING) && waits(text.slice(WAITING.length));
  try {
    for await (const data of events(body, comment)) {
      whole = data === "[DONE]"; // nothing follows it
      if (whole) continue;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Failure(chunk.error, { traceId });
      yield chunk;
    }
  } catch (error) {
    if (error instanceof Failure || error.name === "AbortError") throw error;
    throw new Failure({ message: `The stream broke off: ${error.message}` }, { traceId });
  }
  if (!whole) {
    throw new Failure({ message: "The stream ended too early: the answer is not whole" }, { traceId });
  }
}

function traceIdOf(response) {
  return response.headers.get("x-tandem-trace-id") ?? "";
}
