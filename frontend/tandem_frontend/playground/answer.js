// What has come of one answer, put together from the chunks of its stream.

export class Answer {
  content = "";
  reasoning = "";
  calls = []; // {id, name, arguments}
  finishReason = "";
  stopReason = null;
  usage = null;
  report = null;

  take(chunk) {
    this.usage = chunk.usage ?? this.usage;
    this.report = chunk.tandem ?? this.report;
    for (const { delta, finish_reason, stop_reason } of chunk.choices) {
      this.content += delta?.content ?? "";
      this.reasoning += delta?.reasoning_content ?? "";
      for (const part of delta?.tool_calls ?? []) this.#addToCall(part);
      this.finishReason = finish_reason ?? this.finishReason;
      this.stopReason = stop_reason ?? this.stopReason;
    }
  }

  #addToCall({ index, id, function: { name, arguments: more } = {} }) {
    const call = (this.calls[index] ??= { id: "", name: "", arguments: "" });
    call.id ||= id ?? "";
    call.name ||= name ?? "";
    call.arguments += more ?? "";
  }

  get empty() {
    return !(this.content || this.reasoning || this.calls.length);
  }

  // Calls that want a result: those of an answer that was cut off may be half of what was meant.
  get wholeCalls() {
    return this.finishReason === "tool_calls" ? this.calls : [];
  }

  // As the model is shown it when the conversation goes on.
  get message() {
    const message = { role: "assistant", content: this.content || null };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    if (this.wholeCalls.length) {
      message.tool_calls = this.wholeCalls.map(({ id, ...made }) => ({ id, type: "function", function: made }));
    }
    return message;
  }
}
