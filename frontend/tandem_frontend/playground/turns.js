// The turns of a conversation, as the page shows them.

import { GrowingText, copyButton, count, duration, element, folded } from "./elements.js";
import { GrowingMarkdown } from "./markdown.js";
import { trace } from "./trace.js";

export function question(text) {
  return element("article", { className: "turn user" }, element("div", { className: "text" }, text));
}

export class AnswerTurn {
  #began = performance.now();
  #firstAt = null;
  #frame = 0;
  #calls = [];
  #footer = null;
  #retry = null;
  #content = new GrowingMarkdown("text");
  #thoughts = new GrowingText("text");
  #reasoning = folded("reasoning", "Reasoning", this.#thoughts.node);
  #seconds = element("span", { ariaHidden: "true" }); // nobody wants each of them read aloud
  #reason = element("span");
  #waiting = element("p", { className: "hint waiting" }, "Waiting for the first token", this.#seconds, this.#reason);
  #clock = setInterval(() => {
    this.#seconds.textContent = `, ${Math.round((performance.now() - this.#began) / 1e3)} s`;
  }, 1e3);

  constructor() {
    this.#reasoning.hidden = true;
    const parts = [this.#waiting, this.#reasoning, this.#content.node];
    this.node = element("article", { className: "turn assistant", ariaBusy: "true" }, ...parts);
  }

  // What the server says that the answer waits for.
  waits(what) {
    this.#reason.textContent = `: ${what}`;
  }

  // Show what has come, when the browser paints next.
  changed(answer) {
    if (!answer.empty) this.#firstAt ??= performance.now();
    this.#frame ||= requestAnimationFrame(() => this.#show(answer));
  }

  #show(answer) {
    this.#frame = 0;
    if (!answer.empty) this.#waitNoLonger();
    this.#reasoning.hidden = !answer.reasoning;
    this.#thoughts.show(answer.reasoning);
    this.#content.show(answer.content);
    answer.calls.forEach((call, place) => {
      const shown = (this.#calls[place] ??= this.#addCall());
      shown.name.textContent = call.name;
      shown.made.textContent = call.arguments;
    });
  }

  #waitNoLonger() {
    clearInterval(this.#clock);
    this.#waiting.remove();
  }

  #addCall() {
    const name = element("b");
    const made = element("pre");
    const node = element("section", { className: "call" }, element("h3", {}, "call of ", name), made);
    this.node.append(node);
    return { node, name, made };
  }

  // No more will come. `noTrace`: why there is no trace, where there is none.
  end(answer, { traceId, noTrace, failure = null, stopped = false }) {
    cancelAnimationFrame(this.#frame);
    this.#waitNoLonger();
    this.#show(answer);
    this.node.ariaBusy = "false";
    if (failure) {
      this.node.classList.add("failed");
      this.node.append(failureBox(failure));
    }
    this.#footer = this.#facts(answer, stopped, traceId);
    if (answer.content) this.#footer.append(copyButton("Copy answer", () => answer.content));
    this.node.append(this.#footer);
    if (answer.report) this.node.append(trace(answer.report));
    else this.node.append(element("p", { className: "hint no-trace" }, noTrace));
  }

  // `again`: sends what this answers once more.
  offerRetry(again) {
    this.#retry = element("button", { type: "button", className: "small" }, "Retry");
    this.#retry.addEventListener("click", again);
    this.#footer.append(this.#retry);
  }

  withdrawRetry() {
    this.#retry?.remove();
  }

  #facts({ finishReason, stopReason, usage, report }, stopped, traceId) {
    const shown = [stopped ? "stopped" : finishReason];
    if (stopReason !== null) shown.push(`by ${stopReason}`);
    if (usage) {
      const thoughts = usage.completion_tokens_details?.reasoning_tokens;
      const ofThem = thoughts ? ` (${thoughts} of reasoning)` : "";
      shown.push(`${count(usage.prompt_tokens, "token")} in, ${usage.completion_tokens} out${ofThem}`);
    }
    if (usage?.completion_tokens > 1 && this.#firstAt !== null) {
      const seconds = (performance.now() - this.#firstAt) / 1e3;
      shown.push(`${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s`);
    }
    if (report) shown.push(`${duration(report.timeline[0].queue_seconds)} in the queue`);
    const since = (time) => duration((time - this.#began) / 1e3);
    const first = this.#firstAt === null ? "" : `first text after ${since(this.#firstAt)}, `;
    shown.push(`seen here: ${first}end after ${since(performance.now())}`);
    const spans = shown.filter(Boolean).map((fact) => element("span", {}, fact));
    if (traceId) spans.push(element("span", { className: "trace-id" }, "trace id ", element("code", {}, traceId)));
    return element("footer", {}, ...spans);
  }

  // Ask for the results of calls. `send` is given the messages with them, and says later whether they
  // may be sent again.
  askResults(calls, send) {
    const boxes = calls.map((call, place) => {
      const box = element("textarea", { rows: 1, className: "code", ariaLabel: `Result of ${call.name}`, placeholder: "Result" });
      this.#calls[place].node.append(box);
      return box;
    });
    const button = element("button", { type: "button", className: "primary results" }, "Send results");
    const enable = (enabled) => [...boxes, button].forEach((each) => (each.disabled = !enabled));
    button.addEventListener("click", async () => {
      enable(false);
      const results = calls.map(({ id }, place) => ({ role: "tool", tool_call_id: id, content: boxes[place].value }));
      if (await send(results)) enable(true);
      else button.remove();
    });
    this.#calls.at(-1).node.after(button);
    boxes[0].focus();
  }
}

function failureBox({ status, code, param, message, traceId, retryAfter }) {
  const title = [status, code].filter(Boolean).join(" ") || "No whole answer";
  const box = element("div", { className: "failure", role: "alert" }, element("b", {}, title), element("p", {}, message));
  if (param) box.append(element("p", {}, "Field: ", element("code", {}, param)));
  if (retryAfter) box.append(element("p", {}, `Retry-After: ${retryAfter}`));
  return box;
}
