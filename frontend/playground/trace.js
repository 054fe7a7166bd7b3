// The way of one answer through the workers, as its report tells it.

import { count, duration, element, folded } from "./elements.js";

const VERDICTS = ["emitted", "suppressed", "terminated"];

export function trace(report) {
  return folded("trace", "Trace", timeline(report), way(report.phases));
}

// How long the first token took, of the whole. Both are the server's own times.
function timeline({ ttft_seconds: first, request_seconds: whole }) {
  if (first === null) return element("p", { className: "hint" }, `No token came in ${duration(whole)}.`);
  const [before, after] = [element("span", { className: "first" }), element("span", { className: "rest" })];
  before.style.flexGrow = first / whole;
  after.style.flexGrow = 1 - first / whole;
  return element(
    "div",
    { className: "timeline" },
    element("div", { className: "bar" }, before, after),
    element(
      "p",
      {},
      element("span", {}, "first token ", element("b", {}, duration(first))),
      element("span", {}, "whole answer ", element("b", {}, duration(whole))),
    ),
  );
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
