// The way of one answer through the workers, as its report tells it.

import { count, duration, element, folded } from "./elements.js";

const SECONDS = "_seconds";
const VERDICTS = ["emitted", "suppressed", "terminated"];

export function trace(report) {
  return folded("trace", "Trace", timeline(report), way(report.phases));
}

// Where the time of the whole answer went. All are the server's own times.
function timeline({ ttft_seconds: first, request_seconds: whole, timeline: [times] }) {
  const segments = Object.entries(times)
    .filter(([name, seconds]) => name.endsWith(SECONDS) && seconds > 0)
    .map(([name, seconds]) => ({ key: name.slice(0, -SECONDS.length), seconds }));
  const node = element(
    "div",
    { className: "timeline" },
    element("div", { className: "bar" }, ...segments.map((each) => bar(each, whole))),
    element("p", {}, ...segments.map(({ key, seconds }) => time(key === "kv" ? "KV" : key, seconds))),
    element("p", {}, ...(first === null ? [] : [time("first token", first)]), time("whole answer", whole)),
  );
  if (times.queue_cause) node.append(element("p", { className: "cause" }, `It waited in the queue: ${times.queue_cause}.`));
  return node;
}

function bar({ key, seconds }, whole) {
  const made = element("span", { className: key });
  made.style.flexGrow = seconds / whole;
  return made;
}

function time(name, seconds) {
  return element("span", {}, `${name} `, element("b", {}, duration(seconds)));
}

// Prefill's legs, what was handed over, decode's legs. A retry adds one of each.
function way(phases) {
  const [prefill, decode] = ["prefill", "decode"].map((name) => phases.filter(({ phase }) => phase === name));
  const measured = [prefill, decode].map((legs) => legs.filter(({ kv_bytes }) => kv_bytes > 0));
  const moved = measured.find((legs) => legs.length) ?? []; // which phase measures it is the engine's way
  const column = (className, parts) => element("div", { className }, ...parts);
  return column("way", [
    column("legs", prefill.map(leg)),
    column("moved", moved.map(handOver)),
    column("legs", decode.map(leg)),
  ]);
}

function leg(phase) {
  const verdicts = VERDICTS.filter((verdict) => phase[verdict]).flatMap((verdict) => [
    element("span", { className: `verdict ${verdict}` }, `${phase[verdict]} ${verdict}`),
    " ",
  ]);
  return element(
    "section",
    { className: `leg ${phase.phase}` },
    element("h3", {}, phase.phase, element("span", {}, duration(phase.phase_seconds))),
    facts([
      ["worker", phase.worker],
      ["request id", String(phase.request_id)],
      ["hook", ...(verdicts.length ? verdicts : ["no verdicts"])],
      ["hook time", duration(phase.hook_seconds)],
    ]),
  );
}

function handOver({ kv_bytes, kv_seconds, kv_transport }) {
  return element(
    "p",
    {},
    element("span", {}, "KV cache"),
    element("b", {}, count(kv_bytes, "byte")),
    element("span", {}, duration(kv_seconds)),
    element("span", {}, kv_transport),
  );
}

function facts(rows) {
  return element(
    "dl",
    {},
    ...rows.flatMap(([name, ...said]) => [element("dt", {}, name), element("dd", {}, ...said)]),
  );
}
