// What is set beside the conversation: the model, the key, and the fields of a request.

import { Failure, models } from "./client.js";

const at = (id) => document.getElementById(id);
const FIELDS = [...document.querySelectorAll("#settings [name]")];
const EXAMPLE = [
  {
    type: "function",
    function: {
      name: "weather",
      description: "How warm it is in a place.",
      parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] },
    },
  },
];

export const key = () => at("key").value.trim();
export const system = () => at("system").value;
export const wantsReport = () => at("report").checked;

export function refuseReports() {
  at("report").checked = false;
  at("report").disabled = true;
  at("report-refused").hidden = false;
}

// Why an answer that ended has no trace.
export function whyNoTrace() {
  if (wantsReport()) return "No trace: it comes with the end of a whole answer.";
  return at("report").disabled ? "No trace: this deployment gives no reports." : "No trace: it was not asked for.";
}

let asked = 0;
let simulated = new Set(); // names of models

// Fill the list of models; the last one to ask is heeded, as a key may be typed meanwhile.
export async function listModels() {
  const mine = ++asked;
  const said = { cards: [], failure: "" };
  try {
    said.cards = await models(key());
  } catch (failure) {
    said.failure = failure.message;
  }
  if (mine !== asked) return;
  simulated = new Set(said.cards.filter((card) => card.simulated).map((card) => card.id));
  at("model").replaceChildren(...said.cards.map((card) => new Option(card.id)));
  showSimulated();
  at("models-failure").textContent = said.failure;
  at("models-failure").hidden = !said.failure;
}

function showSimulated() {
  at("simulated").hidden = !simulated.has(at("model").value);
}

// A request for the answer to these messages. Raises Failure for a field that cannot be sent.
export async function request(messages) {
  if (!at("model").value) await listModels();
  const body = { model: at("model").value, messages, stream: true, stream_options: { include_usage: true } };
  if (wantsReport()) body.tandem = { report: true };
  for (const field of FIELDS) {
    field.removeAttribute("aria-invalid");
    const value = valueOf(field);
    if (value !== undefined) body[field.name] = value;
  }
  if (!body.tools) delete body.tool_choice; // it means nothing without tools, and is refused
  return body;
}

function valueOf(field) {
  if (field.validity.badInput) throw unusable(field, "is no number");
  const text = field.value.trim();
  if (!text) return undefined;
  if (field.name === "tools") return toolsIn(field);
  if (field.name === "stop") return field.value.split("\n").filter(Boolean);
  if (field.type !== "number") return text;
  const number = Number(text);
  if (Math.abs(number) > Number.MAX_SAFE_INTEGER) throw unusable(field, "is larger than this page can send exactly");
  return number;
}

function toolsIn(field) {
  let tools;
  try {
    tools = JSON.parse(field.value);
  } catch (error) {
    throw unusable(field, `is no JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw unusable(field, "must be a JSON list of tools");
  return tools.length ? tools : undefined;
}

function unusable(field, why) {
  return new Failure({ message: `\`${field.name}\` ${why}`, param: field.name });
}

// Mark the field that the server, or this page, refused.
export function mark(param) {
  const name = /^\w+/.exec(param)?.[0];
  FIELDS.find((field) => field.name === name)?.setAttribute("aria-invalid", "true");
}

at("key").addEventListener("change", listModels);
at("model").addEventListener("change", showSimulated);
at("example-tool").addEventListener("click", () => {
  at("tools").value = JSON.stringify(EXAMPLE, null, 2);
});
at("show-settings").addEventListener("click", ({ target }) => {
  const shown = document.body.classList.toggle("settings-shown");
  target.ariaExpanded = String(shown);
});
listModels();
