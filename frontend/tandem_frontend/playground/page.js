// The conversation: what is sent, what is kept of it, and which buttons there are meanwhile.

import { Answer } from "./answer.js";
import { Failure, chat } from "./client.js";
import * as settings from "./settings.js";
import { AnswerTurn, question } from "./turns.js";

const at = (id) => document.getElementById(id);
const conversation = at("conversation");
const prompt = at("prompt");
const welcome = conversation.firstElementChild;

let messages = [];
let running = null; // what aborts the answer that is streaming
let owed = false; // calls wait for their results
let last = null; // the turn that may be tried again
let atEnd = true; // of the conversation is what its reader looks at

// Send the conversation with what is `added` to it. Both that and the answer become part of the
// conversation, or neither does: says whether what was added may be sent again.
async function exchange(added) {
  last?.withdrawRetry();
  const mine = messages;
  const stop = new AbortController();
  const answer = new Answer();
  const turn = (last = new AnswerTurn());
  const ended = { traceId: "" };
  setRunning(stop);
  show(turn.node);
  try {
    const { traceId, chunks } = await ask([...mine, ...added], stop.signal, (what) => turn.waits(what));
    ended.traceId = traceId;
    for await (const chunk of chunks) {
      answer.take(chunk);
      turn.changed(answer);
    }
  } catch (error) {
    if (stop.signal.aborted) ended.stopped = true;
    else Object.assign(ended, failedBy(error));
  }
  turn.end(answer, { ...ended, noTrace: settings.whyNoTrace() });
  if (mine !== messages) return false; // another chat was begun
  setRunning(null);
  if (ended.failure || (ended.stopped && answer.empty)) return true;
  messages.push(...added, answer.message);
  if (answer.wholeCalls.length) owe(turn, answer.wholeCalls);
  return false;
}

async function ask(all, signal, waits) {
  const system = settings.system();
  const body = await settings.request(system ? [{ role: "system", content: system }, ...all] : all);
  try {
    return await chat(body, settings.key(), signal, waits);
  } catch (error) {
    if (error.code !== "unsupported_parameter" || error.param !== "tandem.report") throw error;
    settings.refuseReports();
    return ask(all, signal, waits);
  }
}

function failedBy(error) {
  if (error instanceof Failure) {
    settings.mark(error.param);
    return { failure: error, traceId: error.traceId };
  }
  console.error(error);
  return { failure: new Failure({ message: `This page has a fault: ${error.message}` }) };
}

// Nothing else is said before the calls have their results.
function owe(turn, calls) {
  setOwed(true);
  turn.askResults(calls, async (results) => {
    setOwed(false);
    const again = await exchange(results);
    if (again) setOwed(true);
    return again;
  });
}

async function say() {
  const text = prompt.value;
  if (!text.trim() || running || owed) return;
  prompt.value = "";
  const asked = question(text);
  show(asked);
  await askFor(text, asked);
}

// The answer to a question that is shown already.
async function askFor(text, asked) {
  const before = messages;
  messages = [...before]; // which the answer becomes part of
  const mine = messages;
  const failed = await exchange([{ role: "user", content: text }]);
  if (mine !== messages) return;
  asked.classList.toggle("failed", failed);
  if (failed && !prompt.value) prompt.value = text;
  const turn = last;
  turn.offerRetry(() => {
    if (running) return;
    setOwed(false);
    if (failed && prompt.value === text) prompt.value = "";
    messages = before;
    turn.node.remove();
    askFor(text, asked);
  });
}

function startAnew() {
  messages = [];
  last = null;
  running?.abort();
  setRunning(null);
  setOwed(false);
  conversation.replaceChildren(welcome);
  prompt.focus();
}

function setRunning(stop) {
  running = stop;
  at("send").hidden = Boolean(stop);
  at("stop-answer").hidden = !stop;
}

function setOwed(now) {
  owed = now;
  prompt.disabled = at("send").disabled = now;
  prompt.placeholder = now ? "Give the results of the calls first" : "Message";
}

function show(turn) {
  welcome.remove();
  atEnd = true;
  conversation.append(turn);
}

// The end stays in sight, unless its reader has gone elsewhere.
conversation.addEventListener("scroll", () => {
  atEnd = conversation.scrollHeight - conversation.scrollTop - conversation.clientHeight < 40;
});
new MutationObserver(() => {
  if (atEnd) conversation.scrollTop = conversation.scrollHeight;
}).observe(conversation, { childList: true, subtree: true, characterData: true, attributeFilter: ["open"] });

at("send").addEventListener("click", say);
at("stop-answer").addEventListener("click", () => running?.abort());
at("new-chat").addEventListener("click", startAnew);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  say();
});
prompt.focus();
