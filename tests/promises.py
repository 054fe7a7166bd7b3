"""What Tandem promises, as data, and which tests hold it.

A test names what it proves: `@pytest.mark.promise("S0-012")`, or a case of a trace in its title,
`== A sentence. (S0-012)`. tests/unit/test_promises.py fails
when a promise has neither a test nor a written gap, and when a test names a promise that is not
listed.

    python tests/promises.py            # a line for each family, then the gaps with their reasons
    python tests/promises.py S6-142     # the tests of one promise, or of a family: S6
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tests", "kits/*/tests")
_ID = re.compile(r"\bS\d-\d{3}\b")


@dataclass(frozen=True)
class Promise:
    """One sentence we hold. `ours`: the original leaves it open or breaks it."""

    id: str
    sentence: str
    ours: bool = False

    @property
    def seed(self) -> str:
        return self.id.partition("-")[0]


# Why a promise is not held, or not wholly. Tests of the part that is held keep their marks.
GAPS: dict[str, str] = {}

PROMISES: tuple[Promise, ...] = (
    # --- S0: TensorRT-LLM hook (seed 000) ---
    Promise(
        "S0-001",
        "Given a valid dotted path, when a worker starts, then one instance is built per "
        "process with no arguments.",
    ),
    Promise(
        "S0-002",
        "Given a bad module, class, or constructor signature, when starting, then start fails"
        " naming the path.",
    ),
    Promise(
        "S0-003",
        "Given a non-callable object, when starting, then start fails.",
    ),
    Promise(
        "S0-004",
        "Given the path in the config file instead of the flag, when starting, then the same "
        "hook loads.",
    ),
    Promise(
        "S0-005",
        "Given two engine instances in one process, when both load the hook, then instances "
        "and state differ.",
    ),
    Promise(
        "S0-006",
        "Given a pass-through hook, when streaming, then output equals the run without a hook.",
    ),
    Promise(
        "S0-007",
        "Given an upper-casing hook, when chat/completions × stream/non-stream × pool 0/2, "
        "then all text is upper case.",
    ),
    Promise(
        "S0-008",
        "Given emit with other text mid-stream, when the next chunk comes, then earlier text "
        "is unchanged and only the diff was replaced.",
    ),
    Promise(
        "S0-009",
        "Given emit, when logprobs and token ids are requested, then they stay those of the model.",
    ),
    Promise(
        "S0-010",
        "Given suppress on every chunk, when any endpoint or mode, then text, token ids, and "
        "logprobs are empty.",
    ),
    Promise(
        "S0-011",
        "Given suppress on chunk k only, when streaming, then chunks before and after k "
        "arrive and k is lost in all channels.",
    ),
    Promise(
        "S0-012",
        "Given suppress then emit, when non-streaming, then the body equals what streaming "
        "sends for the same chunk sequence.",
        ours=True,
    ),
    Promise(
        "S0-013",
        "Given terminate at chunk k, when streaming, then chunks < k are kept, k withheld, "
        'finish_reason "stop", stop_reason = reason.',
    ),
    Promise(
        "S0-014",
        "Given terminate, when the verdict is applied, then the engine request is cancelled "
        "exactly once and its KV is freed.",
    ),
    Promise(
        "S0-015",
        "Given terminate, when the engine still delivers chunks, then they are dropped "
        "without error.",
        ours=True,
    ),
    Promise(
        "S0-016",
        "Given terminate after a tool call, when formatting, then finish_reason is still the "
        "hook's stop.",
        ours=True,
    ),
    Promise(
        "S0-017",
        "Given the phrase guard split over two chunks, when the phrase completes, then only "
        "text before that chunk was sent.",
    ),
    Promise(
        "S0-018",
        "Given non-streaming and the phrase guard, when the phrase occurs, then the kept "
        "prefix equals the streaming one.",
        ours=True,
    ),
    Promise(
        "S0-019",
        "Given a raising hook, when it runs, then the request fails with an error, nothing of"
        " that chunk is sent, other requests finish.",
    ),
    Promise(
        "S0-020",
        "Given a verdict with unknown action or a non-verdict return, when applied, then as "
        "S0-019.",
    ),
    Promise(
        "S0-021",
        "Given concurrent requests, when interleaved, then state keyed by request_id stays "
        "separate.",
    ),
    Promise(
        "S0-022",
        "Given any request, when it ends, then each output gets exactly one is_final call "
        "(upstream: request-level).",
        ours=True,
    ),
    Promise(
        "S0-023",
        "Given streaming true/false, when called, then chunk.streaming matches and, non-"
        "streaming, text_diff accumulates to text.",
    ),
    Promise(
        "S0-024",
        "Given detokenize=false, when completions run, then the hook still runs and the flag "
        "only picks the channel.",
    ),
    Promise(
        "S0-025",
        "Given skip_tokenizer_init, when starting with a hook, then refused.",
    ),
    Promise(
        "S0-026",
        "Given a model whose output others rebuild from tokens (harmony), when a hook is set, then "
        "it sees the text that is taken apart, and what it withholds stays withheld.",
        ours=True,
    ),
    Promise(
        "S0-027",
        "Given a mode that cannot run the hook, when starting, then refused, never ignored.",
        ours=True,
    ),
    Promise(
        "S0-028",
        "Given n=2 and suppress on output 0, when done, then output 1 is untouched.",
    ),
    Promise(
        "S0-029",
        "Given n=2 and terminate on output 0, when applied, then both end and no sibling text"
        " of that chunk leaks.",
        ours=True,
    ),
    Promise(
        "S0-030",
        "Given n=2 non-streaming and a redacting hook, when the second output ends later, "
        "then the first stays redacted.",
        ours=True,
    ),
    Promise(
        "S0-031",
        "Given a pool, when a request has many chunks, then all reach the same worker process.",
    ),
    Promise(
        "S0-032",
        "Given a pool worker that dies, when requests are open, then they fail closed and new"
        " ones are served.",
        ours=True,
    ),
    Promise(
        "S0-033",
        "Given a reasoning or tool parser, when a hook is set, then it sees raw text before "
        "the parser.",
    ),
    Promise(
        "S0-034",
        "Given prefill and decode workers, when one request runs, then each hook call has its"
        " phase's own request_id and no shared state.",
    ),
    Promise(
        "S0-035",
        "Given terminate on prefill, when configured as independent, then decode still runs; "
        "when configured to propagate, then the client gets finish_reason and reason.",
        ours=True,
    ),
    Promise(
        "S0-036",
        "Given terminate on decode, when applied, then the prefill worker's pinned KV is "
        "released within the lease.",
    ),
    Promise(
        "S0-037",
        "Given a stop string, when hit, then the hook sees text already cut.",
    ),
    Promise(
        "S0-038",
        "Given usage requested and chunks withheld, when finished, then completion_tokens "
        "counts generated tokens alike in both modes.",
        ours=True,
    ),
    Promise(
        "S0-039",
        "Given a terminate or a classifier's block, when responses or messages are asked for, then "
        "the answer is incomplete/content_filter or a refusal, by default, and has the reason.",
        ours=True,
    ),
    # --- S1: Dynamo logits layer, vLLM (seed 001) ---
    Promise(
        "S1-039",
        "Given a class with `(input_ids, logits)` call, when applied, then logits change in place.",
    ),
    Promise(
        "S1-040",
        "Given a spec marked generation-only, when the role is aggregated or decode, then "
        "entries are returned; when prefill, none. Given any other spec, then both phases "
        "apply it, at the request's absolute positions (the seeds gate every spec out of "
        "prefill, and the first token then escapes it).",
        ours=True,
    ),
    Promise(
        "S1-041",
        "Given no spec, when asked, then an empty list and no sampling change.",
    ),
    Promise(
        "S1-042",
        "Given two requests, when activated, then each gets fresh processor state.",
    ),
    Promise(
        "S1-043",
        "Given a forced sequence spec, when decoding aggregated, then output is exactly it "
        "followed by end of sequence.",
    ),
    Promise(
        "S1-044",
        "Given the test switch off, when starting, then engine arguments are untouched.",
    ),
    Promise(
        "S1-045",
        "Given the switch on and a prefill role, when starting, then the prefill side "
        "registers exactly what the exact first token needs, and nothing where the spec is "
        "generation-only.",
        ours=True,
    ),
    Promise(
        "S1-046",
        "Given the switch on and a generation role, when starting, then the adapter is "
        "registered before the engine config is built.",
    ),
    Promise(
        "S1-047",
        "Given the text, when starting, then it is tokenised once.",
    ),
    Promise(
        "S1-048",
        "Given entries, when sent, then they survive serialisation unchanged.",
    ),
    Promise(
        "S1-049",
        "Given a live callable spec, when a serialising backend gets it, then it is rejected "
        "with a clear error.",
    ),
    Promise(
        "S1-050",
        "Given a request without activation, when batched with active ones, then its logits "
        "are bit-identical.",
    ),
    Promise(
        "S1-051",
        "Given disaggregation, when forced sequence runs, then the whole client-visible text "
        "is the sequence including token 1.",
        ours=True,
    ),
    Promise(
        "S1-052",
        "Given chunked prefill or preemption, when resumed, then the position is right (#29045).",
        ours=True,
    ),
    Promise(
        "S1-053",
        "Given a tokenizer without end token, when building the spec, then refused at start.",
        ours=True,
    ),
    Promise(
        "S1-054",
        "Given a processor named in configuration (import path or entry point), when the "
        "worker starts, then it is loaded, with no engine code change (the seeds have no "
        "public loader).",
        ours=True,
    ),
    Promise(
        "S1-055",
        "Given a backend whose interface version differs, when loading, then a clear refusal.",
        ours=True,
    ),
    Promise(
        "S1-300",
        "Given special tokens that a task names, then their text is in its output for hooks, stop "
        "strings and client in both phases; all others, and those of other tasks, stay hidden.",
        ours=True,
    ),
    Promise(
        "S1-301",
        "Given calls between tags, when they must come, may come in free text, or may come instead "
        "of JSON, then the answer is one of those, with arguments of their schemas, from prefill's "
        "token on; tags that are special tokens come as those.",
        ours=True,
    ),
    Promise(
        "S1-302",
        "Given a prompt that opened a thought, when the answer is to have a form, then the model "
        "thinks first and the form begins behind the thought's end, in all dialects.",
        ours=True,
    ),
    Promise(
        "S1-303",
        "Given a budget of a thought, then it counts in the thought alone, changes no answer that "
        "does not think, and leaves a token at each step beside forms and calls that follow it.",
        ours=True,
    ),
    Promise(
        "S1-304",
        "Given stop strings, when one is met in a thought, then the answer goes on; they count in "
        "content alone, from prefill's token on and where an output goes on elsewhere.",
        ours=True,
    ),
    Promise(
        "S1-305",
        "Given a model whose chat template shows a thought, or only opens one, then its thoughts "
        "are told from content, whichever family writes its calls.",
        ours=True,
    ),
    # --- S2: Executor API (seed 002) ---
    Promise(
        "S2-056",
        "Given a request, when enqueued, then a unique id returns without waiting.",
    ),
    Promise(
        "S2-057",
        "Given several, when enqueued together, then ids return in order.",
    ),
    Promise(
        "S2-058",
        "Given mixed arrivals, when running, then they share iterations (continuous batching).",
    ),
    Promise(
        "S2-059",
        "Given an id, when awaited, then only its responses return.",
    ),
    Promise(
        "S2-060",
        "Given no id, when awaited, then responses of any request return, in any order "
        "between requests.",
    ),
    Promise(
        "S2-061",
        "Given a list of ids, when awaited, then lists return in the given order.",
    ),
    Promise(
        "S2-062",
        "Given a timeout and nothing ready, when awaited, then an empty list.",
    ),
    Promise(
        "S2-063",
        "Given a finished id, when awaited again, then an error or empty, never a hang.",
        ours=True,
    ),
    Promise(
        "S2-064",
        "Given an open request, when cancelled, then a final response with reason cancelled "
        "and freed KV.",
    ),
    Promise(
        "S2-065",
        "Given an unknown or finished id, when cancelled, then no effect and no error.",
        ours=True,
    ),
    Promise(
        "S2-066",
        "Given cancel during KV transfer, when the transfer settles, then memory is reused "
        "only after that.",
        ours=True,
    ),
    Promise(
        "S2-067",
        "Given streaming, when generating, then one result per new token; isFinal only on the"
        " last.",
    ),
    Promise(
        "S2-068",
        "Given non-streaming, when done, then one result with all tokens and isFinal.",
    ),
    Promise(
        "S2-069",
        "Given an invalid field, when enqueued, then an error response, not a crash.",
    ),
    Promise(
        "S2-070",
        "Given a response with error, when the result is read, then it raises; the reverse too.",
    ),
    Promise(
        "S2-071",
        "Given a named callback map, when a request names one, then only it is affected.",
    ),
    Promise(
        "S2-072",
        "Given an unknown callback name, when enqueued, then an error response.",
        ours=True,
    ),
    Promise(
        "S2-073",
        "Given a batched callback, when a batch runs, then it is called once with parallel "
        "lists and client ids.",
    ),
    Promise(
        "S2-074",
        "Given chunked prefill, when the first token is sampled, then the callback runs once "
        "for it (#2439).",
        ours=True,
    ),
    Promise(
        "S2-075",
        "Given the device stream rule, when a callback edits on that stream, then sampling "
        "sees it without a global sync.",
    ),
    Promise(
        "S2-076",
        "Given static batching, when a callback is requested, then refused.",
    ),
    Promise(
        "S2-077",
        "Given iteration stats, when read twice, then the second call returns only newer "
        "ones, bounded.",
    ),
    Promise(
        "S2-078",
        "Given end id, stop word, length, time budget, cancel, when hit, then the matching "
        "finish reason.",
    ),
    Promise(
        "S2-079",
        "Given a time budget, when exceeded before scheduling, then finished as timed out.",
    ),
    Promise(
        "S2-080",
        "Given a full queue, when enqueued, then rejected at once.",
    ),
    Promise(
        "S2-081",
        "Given shutdown, when called, then blocked waits wake and later calls raise.",
    ),
    Promise(
        "S2-082",
        "Given a context-only request, when done, then it returns first tokens, context id "
        "and opaque state; a generation-only request with them completes.",
    ),
    Promise(
        "S2-083",
        "Given priorities, when both wait, then the higher starts first.",
        ours=True,
    ),
    Promise(
        "S2-084",
        "Given ready counts, when asked per id and in total, then they agree with what await "
        "returns.",
    ),
    Promise(
        "S2-085",
        "Given a callback of four arguments, as the page has it, or of five, with the client's id, "
        "when a request names it, then it runs, single or batched.",
    ),
    Promise(
        "S2-086",
        "Given a function of any other form, a class or an async one, when it is registered as a "
        "callback, then it is refused by its name, with both forms.",
        ours=True,
    ),
    Promise(
        "S2-087",
        "Given settings that workers own, and gather_generation_logits, when an executor is made "
        "of them, then they are taken, kept and warned of by name.",
        ours=True,
    ),
    Promise(
        "S2-088",
        "Given an engine's buffers, a kind of guide without a guide, the module's version or a "
        "default of what is left out, then the answer is upstream's, or an error that says what is "
        "needed.",
        ours=True,
    ),
    Promise(
        "S2-089",
        "Given a router's address or a folder with a model, when an executor is made of it, then "
        "its requests run there; what is neither is refused with what was looked for.",
    ),
    Promise(
        "S2-090",
        "Given bad words, of one token or several, when generating, then none of them comes.",
    ),
    Promise(
        "S2-091",
        "Given what is left out, such as prompt tuning or drafted tokens of a request, when it is "
        "named, then it is refused by its name with the reason, which the page lists.",
        ours=True,
    ),
    Promise(
        "S2-092",
        "Given the examples of the Executor API, when run at a router, then they stream an answer "
        "to its end, answer each prompt of a file once, and shape answers by a callback.",
    ),
    Promise(
        "S2-093",
        "Given a request for logits, when it streams, then each response has the prompt's and "
        "those of its own token, and when it does not, those of the whole sequence.",
    ),
    # --- S3: Dynamo logits layer, SGLang (seed 003) ---
    Promise(
        "S3-085",
        "Given the hook on a generation worker, when starting, then custom processors are "
        "enabled; a worker whose user asked to skip the tokenizer refuses to start, by that name.",
    ),
    Promise(
        "S3-086",
        "Given a worker of either phase and no processor configured, when starting, then its "
        "engine flags stay as configured.",
    ),
    Promise(
        "S3-087",
        "Given a batch, when the processor is called, then each row uses only its own "
        "request's parameters.",
    ),
    Promise(
        "S3-088",
        "Given rows of the same request over steps, when called, then the counter advances by"
        " one per step.",
    ),
    Promise(
        "S3-089",
        "Given mixed active and inactive rows, when called, then inactive rows are untouched.",
    ),
    Promise(
        "S3-090",
        "Given a finished, aborted, or expired request, when done, then its state is removed;"
        " after 10 000 requests the map is empty.",
        ours=True,
    ),
    Promise(
        "S3-091",
        "Given n=2 with a stateful processor, when requested, then separate state per "
        "sequence, or a refusal; never silent change of n (seed forces 1).",
        ours=True,
    ),
    Promise(
        "S3-092",
        "Given a processor needing token history, when the backend gives none, then refused "
        "at admission.",
    ),
    Promise(
        "S3-093",
        "Given whichever processor instance the engine happens to call, when state is needed,"
        " then it is found on the request, never on the instance (SGLang builds a new "
        "instance for each batch).",
        ours=True,
    ),
    Promise(
        "S3-094",
        "Given a client-supplied serialised class, when received over HTTP, then refused by "
        "default (code execution).",
        ours=True,
    ),
    Promise(
        "S3-095",
        "Given a request id reused by another client, when active, then states do not mix.",
        ours=True,
    ),
    Promise(
        "S3-096",
        "Given the same spec, when run on two backends, then the same tokens.",
    ),
    Promise(
        "S3-097",
        "Given a retry or preemption of a request, when resumed, then the sequence is neither"
        " repeated nor skipped.",
        ours=True,
    ),
    # --- S4: vLLM RFC hook (seed 004) ---
    Promise(
        "S4-098",
        "Given a registered hook, when a completion ends, then score() gets request id, "
        "prompt, text, extra fields, finish reason, prompt ids, output ids, metadata.",
    ),
    Promise(
        "S4-099",
        "Given several hooks, when run, then concurrently; total time is about the slowest.",
    ),
    Promise(
        "S4-100",
        "Given a hook's timeout, when exceeded, then it alone is cancelled.",
    ),
    Promise(
        "S4-101",
        "Given an annotating hook that fails or times out, when done, then the response is "
        "served and the failure recorded.",
    ),
    Promise(
        "S4-102",
        "Given a blocking hook that fails or times out, when done, then blocked (fail closed).",
        ours=True,
    ),
    Promise(
        "S4-103",
        "Given block true with replacement, when serialised, then the replacement is the text.",
    ),
    Promise(
        "S4-104",
        "Given block true without replacement, when serialised, then the default refusal.",
    ),
    Promise(
        "S4-105",
        'Given "block" from a non-blocking hook, when merged, then only annotated.',
    ),
    Promise(
        "S4-106",
        "Given scores, when done, then they are under external_scores[hook name].",
    ),
    Promise(
        "S4-107",
        "Given default settings, when a client reads JSON, then scores are not in it; with an"
        " option, they are.",
        ours=True,
    ),
    Promise(
        "S4-108",
        "Given two hooks of one name, when registering, then refused.",
        ours=True,
    ),
    Promise(
        "S4-109",
        "Given two blocking hooks with different replacements, when both block, then "
        "registration order decides.",
        ours=True,
    ),
    Promise(
        "S4-110",
        "Given streaming, when a blocking hook runs, then at end of stream and only the last "
        "chunk may change.",
    ),
    Promise(
        "S4-111",
        "Given streaming and hold-back on, when blocked, then nothing was flushed before the "
        "verdict (beyond the RFC).",
        ours=True,
    ),
    Promise(
        "S4-112",
        "Given blocked text, when logprobs or token ids were asked, then they are withheld too.",
        ours=True,
    ),
    Promise(
        "S4-113",
        "Given hooks, when used on chat and completions, then both are covered.",
    ),
    Promise(
        "S4-114",
        "Given n>1, when scoring, then once per output.",
        ours=True,
    ),
    Promise(
        "S4-115",
        "Given a client that disconnects, when hooks run, then they are cancelled.",
    ),
    Promise(
        "S4-116",
        "Given a synchronous score(), when registering, then refused.",
    ),
    Promise(
        "S4-117",
        "Given a hook that mutates the context, when others run, then they see the original.",
        ours=True,
    ),
    Promise(
        "S4-118",
        "Given a chunk hook and a classifier, when both set, then the classifier sees the "
        "text after chunk verdicts.",
        ours=True,
    ),
    Promise(
        "S4-119",
        "Given an error or prefill-terminated request, when ending, then classifiers do not run.",
        ours=True,
    ),
    Promise(
        "S4-120",
        "Given metrics, when hooks run, then calls, verdicts, errors, timeouts, and latency "
        "per hook and phase are exported.",
        ours=True,
    ),
    Promise(
        "S4-121",
        "Given engines of a program's own, when it registers a hook at its Executor or"
        " AsyncExecutor, then the outputs that begin from then on are judged by it.",
    ),
    Promise(
        "S4-122",
        "Given a program, when an output was scored, then its Result has"
        " external_scores[hook name]: of engines of its own, and elsewhere where the deployment"
        " allows it.",
    ),
    Promise(
        "S4-123",
        "Given metadata and extra fields of a program's Request, when its output is judged, then"
        " the hook has them as it has those of a client's body.",
    ),
    Promise(
        "S4-124",
        "Given a hook that blocks, when the client is a program or asks for token ids, then it has"
        " the replacement's text, and neither tokens, log-probabilities nor logits of what was"
        " withheld.",
    ),
    Promise(
        "S4-125",
        "Given fields of a body that OpenAI's API does not have and the deployment names, when sent"
        " to any endpoint that generates, then they are the hook's extra fields, whatever JSON"
        " they are; fields that it does not name are not.",
    ),
    Promise(
        "S4-126",
        "Given a registration at a router elsewhere, then it is refused by name.",
        ours=True,
    ),
    Promise(
        "S4-127",
        "Given `logprobs` in the settings of classifiers, when an output is judged, then the hook"
        " has the log-probability of each token, prefill's among them, and the client has them"
        " only where it asked; without, no engine computes them.",
    ),
    Promise(
        "S4-128",
        "Given a hook that blocks and names sampling parameters, when the deployment lets it, then"
        " the output is generated again with them, as often as the deployment says.",
    ),
    Promise(
        "S4-129",
        "Given a hook that names sampling parameters that the deployment does not let it set, then"
        " the output is blocked and not generated again.",
        ours=True,
    ),
    Promise(
        "S4-130",
        "Given a class as the RFC shows it, without an import of Tandem, then it runs on every"
        " endpoint, and in both executors, at engines of their own and elsewhere.",
    ),
    Promise(
        "S4-131",
        "Given a hook of an asyncio program, when it judges, then on the program's event loop; one"
        " that fails, hangs, or whose loop is gone blocks as any other does.",
        ours=True,
    ),
    # --- S5: operation (ours) ---
    Promise(
        "S5-121",
        "Given a router or frontend that is restarted or replaced, when requests run and "
        "go on coming, then none fails.",
        ours=True,
    ),
    Promise(
        "S5-122",
        "Given workers of two deployment revisions, then they are never paired; given a "
        "new worker, then it is ready once a pair uses it, and never goes back for a "
        "peer's sake.",
        ours=True,
    ),
    Promise(
        "S5-123",
        "Given a worker that leaves the list of discovery, then it gets nothing new and "
        "what is open on it finishes.",
        ours=True,
    ),
    Promise(
        "S5-124",
        "Given a Kubernetes API that is away, then the workers that are known stay.",
        ours=True,
    ),
    Promise(
        "S5-125",
        "Given mutual TLS, when a peer has no certificate of the CA, or one of a role that has "
        "no business there, then no gRPC port answers it; renewed files apply without a restart.",
        ours=True,
    ),
    Promise(
        "S5-126",
        "Given a deployment that answers without moving KV, when it is verified, then that fails.",
        ours=True,
    ),
    Promise(
        "S5-127",
        "Given the chart's defaults, then a namespace under Pod Security restricted takes "
        "every pod, and only two may ask the API: the router for EndpointSlices of its "
        "namespace, and what makes certificates for its three Secrets.",
        ours=True,
    ),
    Promise(
        "S5-128",
        "Given the chart's NetworkPolicies, then each port is open to those who need it "
        "and to nobody else.",
        ours=True,
    ),
    Promise(
        "S5-129",
        "Given an alert, then it fires where it should and stays silent in a near miss.",
        ours=True,
    ),
    Promise(
        "S5-130",
        "Given a query of a dashboard or rule, then a live scrape has its metrics and labels.",
        ours=True,
    ),
    Promise(
        "S5-131",
        "Given a sampled request, then its spans of all hops are one tree; given one that "
        "is not, then nothing is exported.",
        ours=True,
    ),
    Promise(
        "S5-132",
        "Given a model that is fetched, then its folder is whole or not taken for one, "
        "whoever was killed meanwhile.",
        ours=True,
    ),
    Promise(
        "S5-133",
        "Given a release, when it is uninstalled, then nothing of it is left but the pod of its "
        "last test, for its log.",
        ours=True,
    ),
    Promise(
        "S5-201",
        "Given a request's trace id, when a router that has or had it is asked, then it tells its "
        "queueing, the candidates and their costs, its pairs, times, verdicts, retries and end.",
        ours=True,
    ),
    Promise(
        "S5-202",
        "Given a request that no worker suits, then its story has one entry for each rejected "
        "worker and reason, and the log one line for each at a worker that comes up.",
        ours=True,
    ),
    Promise(
        "S5-203",
        "Given requests of any number, size and end, then what a router keeps of their stories, "
        "and what it answers, has a bound, and refused requests push out no other story.",
        ours=True,
    ),
    Promise(
        "S5-204",
        "Given a story, at the admin port or in the log, then nothing of a prompt, an output or a "
        "message of anybody's code is in it.",
        ours=True,
    ),
    Promise(
        "S5-205",
        "Given routers and workers of which some do not answer, when `tandem top` is asked, then "
        "it shows the others, names these, and waits for none beyond its time.",
        ours=True,
    ),
    Promise(
        "S5-748",
        "Given a fleet of 0 to 200 workers and a terminal of 44 to 200 columns and any height, "
        "then `tandem top` shows latencies, goodput, queues and workers by name within it, those "
        "in trouble first.",
        ours=True,
    ),
    Promise(
        "S5-749",
        "Given metrics ports of workers, then `tandem top` shows what a port says beside the "
        "worker and phase that it is of, and beside no other.",
        ours=True,
    ),
    Promise(
        "S5-750",
        "Given what components say of themselves, with escape sequences or markup in it, then "
        "`tandem top` shows it literally and on its line.",
        ours=True,
    ),
    Promise(
        "S5-751",
        "Given a key, a signal, an error, a suspension or a terminal that goes, when it ends "
        "`tandem top`, then the terminal is as it was.",
        ours=True,
    ),
    Promise(
        "S5-752",
        "Given a release without the chart, then `tandem monitoring export` writes dashboards, "
        "rules and a configuration that Prometheus takes, with no placeholder left.",
        ours=True,
    ),
    Promise(
        "S5-753",
        "Given a value that would end a rule it stands in, then `tandem monitoring export` refuses "
        "it and writes nothing.",
        ours=True,
    ),
    Promise(
        "S5-754",
        "Given a plot of `tandem bench` or `tandem replay`, then it has a title, the parameters, "
        "the date, units, round ticks and the objectives, and no panel of nothing.",
        ours=True,
    ),
    Promise(
        "S5-755",
        "Given a command that runs for long, then it says which share is done and about how long "
        "the rest takes, on standard error, and off a terminal only now and then.",
        ours=True,
    ),
    Promise(
        "S5-756",
        "Given a stack on this machine, then `tandem status` tells of each component whether it is "
        "ready, and `tandem logs` merges the components' logs by time, and follows them.",
        ours=True,
    ),
    Promise(
        "S5-757",
        "Given a machine, then `tandem doctor` says what is wrong and what to do, and its report "
        "has no secret; and shells complete commands, options and choices.",
        ours=True,
    ),
    Promise(
        "S5-758",
        "Given any command, then its help shows an example that works, a command or option that is "
        "not there is refused with a hint, and every program tells its version.",
        ours=True,
    ),
    Promise(
        "S5-759",
        "Given a collector that is spoken to by gRPC, then it gets the same spans as one by HTTP, "
        "and costs no more where it is away or does not answer.",
        ours=True,
    ),
    Promise(
        "S5-800",
        "Given sequences of several keys on a worker, then the seconds that the worker counts for "
        "keys and as idle are all of its time, also where workers and routers are killed, and a "
        "key's are those in which its sequences were computed.",
        ours=True,
    ),
    Promise(
        "S5-801",
        "Given more keys than a worker has series for, then the others are counted together.",
        ours=True,
    ),
    Promise(
        "S5-802",
        "Given a deployment with prices, then the usage of an answer says what it took of the "
        "workers and costs, in every dialect, and nothing else of the workers.",
        ours=True,
    ),
    Promise(
        "S5-803",
        "Given an SGLang that lacks a name, or a parameter, that a unit needs, then the unit is "
        "not put in, the name is said, and every other unit is put in.",
        ours=True,
    ),
    Promise(
        "S5-804",
        "Given requests that an engine would not answer exactly for want of a unit, then they go "
        "to workers that can, or are refused by name, and all others are answered.",
        ours=True,
    ),
    Promise(
        "S5-805",
        "Given units that an engine lacks, then the worker's log has one warning for each, and its "
        "metrics, its page of units and `tandem doctor` say which.",
        ours=True,
    ),
    Promise(
        "S5-806",
        "Given units that an engine lacks, and a setting for all or settings that need one, then "
        "the worker does not start, and says the name that is missing.",
        ours=True,
    ),
    Promise(
        "S5-807",
        "Given an SGLang into which no unit fits, then the demo, hooks and forced sequences hold, "
        "and greedy tokens are those of one process.",
        ours=True,
    ),
    Promise(
        "S5-808",
        "Given an SGLang in which a logits processor that fails would end nothing, or more than "
        "its own request, then a worker does not start.",
        ours=True,
    ),
    Promise(
        "S5-809",
        "Given an SGLang in which seeds, penalties or forms come out otherwise than a plain count "
        "says, then a worker does without that unit, as without one whose names are gone.",
        ours=True,
    ),
    Promise(
        "S5-790",
        "Given `tandem up --monitoring`, then a Prometheus with Tandem's rules scrapes every "
        "component of the stack, keeps bounded data, and runs for as long as the stack.",
        ours=True,
    ),
    Promise(
        "S5-791",
        "Given any command with a result and `--json`, then standard output has the result as "
        "lines of JSON and nothing else, and the exit status is one of the table's.",
        ours=True,
    ),
    Promise(
        "S5-206",
        "Given workers of one model with different tokenizers, then a prompt's token ids run on "
        "those of the tokenizer that made them alone, and neither waits for the other.",
        ours=True,
    ),
    Promise(
        "S5-207",
        "Given a thread of SGLang's KV hand-over that dies, then its engine ends, typed and in "
        "bounded time, and not the requests that would have waited for it.",
        ours=True,
    ),
    Promise(
        "S5-461",
        "Given a decode engine whose KV does not fit, or a message that no engine can read, then "
        "hand-overs with its sender fail at once, the log says why, once, and all others go on.",
        ours=True,
    ),
    Promise(
        "S5-462",
        "Given workers whose drafts keep other KV, or of which one alone drafts, then they make no "
        "pair, and the router says which field differs.",
        ours=True,
    ),
    Promise(
        "S5-300",
        "Given an argument of SGLang in server_args, when a worker starts, then it reaches SGLang "
        "over every default, or is refused by name with what sets it or why it would do nothing; "
        "SGLang's list holds no other.",
        ours=True,
    ),
    Promise(
        "S5-680",
        "Given a request of SGLang's that cannot be read as it was in another release, when "
        "processors edit the rows of a step, then that request ends alone, with what was raised.",
        ours=True,
    ),
    Promise(
        "S5-681",
        "Given releases of SGLang that say otherwise how many groups share the accelerators, and "
        "who starts their schedulers, then a worker has the groups that it is set to, and gives "
        "requests out until their schedulers have ended.",
        ours=True,
    ),
    Promise(
        "S5-682",
        "Given an argument of SGLang that Tandem does not know, then it is refused by name, or "
        "with unlisted_server_args passed on with a warning, where the installed SGLang has it.",
        ours=True,
    ),
    Promise(
        "S5-683",
        "Given an engine started by default, then eight names of SGLang's modules and classes mean "
        "something else, counted by running; each option that needs more is listed with its own.",
        ours=True,
    ),
    Promise(
        "S5-449",
        "Given speculative decoding, whose verification leaves min_p out, then a request with "
        "min_p is refused by name.",
        ours=True,
    ),
    Promise(
        "S5-453",
        "Given an argument that Tandem sets and SGLang changes, when a worker starts, then it ends "
        "before the weights are read, with both values and what sets it.",
        ours=True,
    ),
    Promise(
        "S5-302",
        "Given a model's config.json, when tandem plan-fit is asked, then it says how many bytes "
        "its weights and a token's KV take on each GPU, and what fits beside them, or which GPUs "
        "it takes.",
        ours=True,
    ),
    Promise(
        "S5-303",
        "Given the values of a recipe, then the chart renders them, Tandem and SGLang take the "
        "arguments of both phases, and its page says of memory what tandem plan-fit says.",
        ours=True,
    ),
    Promise(
        "S5-301",
        "Given prefill engines that cannot be reached or used, or fall silent, when requests name "
        "them, then the sequences that decode has run on meanwhile.",
        ours=True,
    ),
    Promise(
        "S5-220",
        "Given a model whose last pair has gone, when a request comes within pair_memory_seconds, "
        "then it waits for the next pair, up to pair_wait_seconds and within max_queue, and "
        "frontends stay ready.",
        ours=True,
    ),
    Promise(
        "S5-221",
        "Given pairs of two revisions that differ in context length or logits processors, then "
        "each request runs on one that can run it, and what it waits for keeps no other waiting.",
        ours=True,
    ),
    Promise(
        "S5-223",
        "Given a model without a pair so far that expected_models names, or of which discovery may "
        "list workers, when a request comes, then it waits for the first pair, up to "
        "pair_wait_seconds and within bounds; frontends of an expected model are ready meanwhile.",
        ours=True,
    ),
    Promise(
        "S5-208",
        "Given workers that fail far more often than others of their group, then they get nothing "
        "new for a time that grows with repetition, and prove themselves one request at a time; "
        "never the last of a phase, nor more than a share.",
        ours=True,
    ),
    Promise(
        "S5-209",
        "Given two of eight decode workers that fail all they get at once, then nearly all "
        "requests finish.",
        ours=True,
    ),
    Promise(
        "S5-210",
        "Given a worker whose engine has work and makes no step, then its reports say for how "
        "long, and after a bound it gets nothing new until it makes one.",
        ours=True,
    ),
    Promise(
        "S5-211",
        "Given an engine that goes on standing, then after a second bound what it has shown "
        "nothing of runs elsewhere, and the rest ends with a typed error.",
        ours=True,
    ),
    Promise(
        "S5-217",
        "Given a request that is to be resumed, when its decode worker is killed at whatever "
        "token, then its client's answer is the undisturbed one, by seeds, forms, stop strings, "
        "several outputs, hooks and classifiers.",
        ours=True,
    ),
    Promise(
        "S5-380",
        "Given a greedy or seeded request in whatever mixture of filters, penalties, processors, "
        "forms and log-probabilities of prompts, then its tokens are those that it gets alone, in "
        "both phases, where the engine computes in float32, and else until two tokens tie.",
        ours=True,
    ),
    Promise(
        "S5-381",
        "Given a prompt and max_tokens that together fit the context that is said, then all of "
        "max_tokens is given, or the request is refused with context_length_exceeded.",
        ours=True,
    ),
    Promise(
        "S5-391",
        "Given tensor parallelism, when a processor fails, is late, or edits otherwise on one rank "
        "alone, then every rank ends the same requests and goes on with the same tokens.",
        ours=True,
    ),
    Promise(
        "S5-444",
        "Given tensor parallelism, when an answer's form cannot be compiled, fails or is late on "
        "one rank alone, then its request ends on every rank, and all others go on.",
        ours=True,
    ),
    Promise(
        "S5-460",
        "Given pipeline parallelism, with tensor parallelism too, when an answer's form fails in a "
        "step, then its request ends on every rank of every stage, by that step, and no other.",
        ours=True,
    ),
    Promise(
        "S5-470",
        "Given speculative decoding or pipeline parallelism, then answers of a form are given, "
        "drafts included; a form that fails at a draft ends its request alone, on every rank.",
        ours=True,
    ),
    Promise(
        "S5-471",
        "Given an SGLang engine that fails, or does not start in time, then its worker says which "
        "process it was, how that ended and what it printed last; its log has all they printed.",
        ours=True,
    ),
    Promise(
        "S5-472",
        "Given speculative decoding, when a worker starts with a page that nobody chose, then it "
        "is one that SGLang takes for its drafts.",
        ours=True,
    ),
    Promise(
        "S5-473",
        "Given defaults, when a worker starts or moves KV for the first time, then nobody ends "
        "that before the engine's own bound does, which says what was waited for.",
        ours=True,
    ),
    Promise(
        "S5-474",
        "Given a worker that has started, of whatever kind, then what its processes and its "
        "engine's schedulers hold by then is left to no garbage collector.",
        ours=True,
    ),
    Promise(
        "S5-370",
        "Given phases whose tensor parallelism differs, then KV of plain attention and of latents "
        "arrives as each rank of decode reads it, and what SGLang cannot hand over so is refused at"
        " start, with the reason.",
        ours=True,
    ),
    Promise(
        "S5-371",
        "Given data-parallel ranks, then a sequence is with one of them in each phase, decode asks "
        "the one that has its prompt, and what is counted is counted over all of them.",
        ours=True,
    ),
    Promise(
        "S5-440",
        "Given data-parallel ranks of prefill, then the rooms that a router makes fall to all of "
        "them alike.",
        ours=True,
    ),
    Promise(
        "S5-443",
        "Given several ranks of prefill that write of one sequence, then decode takes it when all "
        "of them have written all, metadata included.",
        ours=True,
    ),
    Promise(
        "S5-392",
        "Given a step with processors on a GPU, then nothing of Tandem's own waits for the device "
        "in it, and a row that failed ends its request before its token is shown.",
        ours=True,
    ),
    Promise(
        "S5-432",
        "Given tandem plan-fit and data-parallel groups or parts of a pipeline, then it divides "
        "weights and KV as SGLang does, and the fullest GPU decides what a worker holds.",
        ours=True,
    ),
    Promise(
        "S5-430",
        "Given a processor that waits for a GPU, then its limit counts its own Python and kernels, "
        "and nothing that the GPU has to do for others; a step within its limits asks the GPU "
        "nothing.",
        ours=True,
    ),
    Promise(
        "S5-218",
        "Given a request that is to be resumed and cannot be, then its error says why, and where a "
        "replay is judged otherwise than what was shown, nothing more of it is shown.",
        ours=True,
    ),
    Promise(
        "S5-222",
        "Given requests that wait while a router is replaced, when the next one has pairs, then "
        "they go to it in order as it has room, and none is refused before its patience ends.",
        ours=True,
    ),
    Promise(
        "S5-230",
        "Given real processes under load, when faults of many kinds strike them, then each answer "
        "is right token by token, each error one that is documented for it, and nothing hangs.",
        ours=True,
    ),
    Promise(
        "S5-231",
        "Given a wrong token, a request that hangs or an error that a fault does not have, then a "
        "chaos run notices it and fails.",
        ours=True,
    ),
    Promise(
        "S5-232",
        "Given clients that go away at any moment, then every other answer is right, and nothing "
        "of theirs is open or held afterwards.",
        ours=True,
    ),
    Promise(
        "S5-240",
        "Given any number of workers, then the router chooses as a look at each of them would, and "
        "what a request, a load report or a change of the fleet costs it does not grow with them, "
        "but for a place in a sorted list.",
        ours=True,
    ),
    Promise(
        "S5-250",
        "Given a request that runs and cannot be started again, then neither its frontend nor its "
        "router keeps its prompt, and a worker's death still names the sizes of its parts.",
        ours=True,
    ),
    Promise(
        "S5-251",
        "Given workers that several routers use, then the routers spread what they start, though "
        "none of them knows at once what the others start.",
        ours=True,
    ),
    Promise(
        "S5-252",
        "Given prompts of different lengths, then a prefill worker's load is the tokens that it "
        "has to compute for each of its slots, and a decode worker's the fuller of its slots and "
        "its KV cache, those of other routers' requests included, as it reports them.",
        ours=True,
    ),
    Promise(
        "S5-253",
        "Given a policy of an operator's own that raises, takes too long or names no worker that "
        "it was offered, then the router chooses in its place, counts and says so, and no request "
        "fails; one that cannot be had keeps the router from starting.",
        ours=True,
    ),
    Promise(
        "S5-254",
        "Given prefill workers, then the router knows which beginnings of prompts their caches "
        "hold by what it sends and by what they report, whose word is the truth, in no more than "
        "the bytes of its setting.",
        ours=True,
    ),
    Promise(
        "S5-401",
        "Given several routers, when much has begun or ended at a worker, then it tells all of "
        "them at once, and what prompts bring that it has yet to compute, and no more often than "
        "its setting says.",
        ours=True,
    ),
    Promise(
        "S5-255",
        "Given the policy prefix, then a request goes to the worker that would have all it has, "
        "and the prompt, computed soonest, where what a cache lacks of it counts four times: "
        "neither a cached beginning nor a session keeps it at a worker that is further behind.",
        ours=True,
    ),
    Promise(
        "S5-256",
        "Given the sim engine with a prefix cache, then the beginning of a prompt is computed once "
        "for each cache_salt, both phases say how much of it was cached, and the answer is the "
        "same.",
        ours=True,
    ),
    Promise(
        "S5-257",
        "Given a request of several outputs, then they prefill on the worker of the first one as "
        "long as that has a slot, and it counts for them no more than what is left to compute.",
        ours=True,
    ),
    Promise(
        "S5-258",
        "Given a client that names a session, by a header of agents, prompt_cache_key or user, "
        "then requests of it go on where the last one went as long as that costs less than "
        "a block of tokens, and what it says reaches no router but as a number.",
        ours=True,
    ),
    Promise(
        "S5-260",
        "Given a worker that has handed over no KV since its start, then it gets no request of a "
        "client's and is not ready, until a canary has moved KV to or from it; where no hand-over "
        "of its succeeds, never.",
        ours=True,
    ),
    Promise(
        "S5-261",
        "Given canaries, then hooks, classifiers, logits processors, the audit log, usage, spans "
        "and the metrics of requests and legs show nothing of them, and a leg that asks for more "
        "than a canary does is refused.",
        ours=True,
    ),
    Promise(
        "S5-262",
        "Given a worker that can be proved, then it is proved in bounded time, whatever becomes of "
        "others; a worker runs one canary at a time, and one that fails is tried ever more seldom.",
        ours=True,
    ),
    Promise(
        "S5-263",
        "Given a client's hand-over that failed, then canaries of both its workers find out which "
        "of them fails with others too, and count in their records as requests do.",
        ours=True,
    ),
    Promise(
        "S5-264",
        "Given an attempt that failed on the only pair that takes work, when another worker of its "
        "group is being proved, then the next attempt waits for it, no longer than for any pair.",
        ours=True,
    ),
    Promise(
        "S5-270",
        "Given routers that divide the decode workers, then each decode worker is served by as "
        "many of them as the setting says, all of them have nearly even shares, and every prefill "
        "worker is served by all.",
        ours=True,
    ),
    Promise(
        "S5-271",
        "Given a router that comes or goes, then no worker moves but those that it serves.",
        ours=True,
    ),
    Promise(
        "S5-272",
        "Given few decode workers, or no setting, then every router serves all.",
        ours=True,
    ),
    Promise(
        "S5-273",
        "Given routers that know of different ones for a while, then what each of them serves is "
        "right by what it knows, and a worker has no more legs than slots whoever serves it.",
        ours=True,
    ),
    Promise(
        "S5-274",
        "Given a decode worker that another router takes over, then what is open on it ends as it "
        "would have, and given a router that is gone, then others serve its share.",
        ours=True,
    ),
    Promise(
        "S5-275",
        "Given a router that serves a share, then metrics and /debug/fleet say what it serves of "
        "what is listed, and with whom it divides.",
        ours=True,
    ),
    Promise(
        "S5-276",
        "Given a fixed list of routers, then one whose port takes no connection does not count "
        "until it does again.",
        ours=True,
    ),
    Promise(
        "S5-277",
        "Given routers that are found by name or by their Service, then those that take nothing "
        "new do not count.",
        ours=True,
    ),
    Promise(
        "S5-280",
        "Given several routers, when a request comes, then it goes to that of two at random which "
        "has more room, and where none has room to the one with the least that waits; never to one "
        "that drains, is silent or has no pair for it while another could run it.",
        ours=True,
    ),
    Promise(
        "S5-281",
        "Given several routers, when one of them is lost or drains, then what had begun there ends "
        "as with a single router, everything else goes to the others, nothing runs twice, and the "
        "model is served as long as one of them serves it.",
        ours=True,
    ),
    Promise(
        "S5-282",
        "Given addresses and names of routers, then a frontend keeps a stream to each of them, at "
        "most max_routers, finds new ones, and does not dial one again that is gone.",
        ours=True,
    ),
    Promise(
        "S5-283",
        "Given frontends, then a router tells them each second how many sequences of each edition "
        "could start there, less those that wait.",
        ours=True,
    ),
    Promise(
        "S5-290",
        "Given a rollout that breaks, when a pod of the revision before starts again, then it "
        "finds the settings and code of its own revision, whoever applied the chart and prunes.",
        ours=True,
    ),
    Promise(
        "S5-291",
        "Given a number of pods that the values leave to others, when the release is upgraded or "
        "rolled back, by Helm 3 or 4 or server-side apply, then the number stays; and the switch "
        "to autoscaling takes no pod away.",
        ours=True,
    ),
    Promise(
        "S5-292",
        "Given the only worker of a phase, when it is evicted, then no request fails: those that "
        "come wait at frontends that stay in their Service; when it is killed, then only what ran "
        "on it fails.",
        ours=True,
    ),
    Promise(
        "S5-298",
        "Given KV that is handed over, then its metrics say what it was written over, shared "
        "memory, RDMA, TCP or CUDA IPC, as UCX itself says; where it does not, they say unknown.",
        ours=True,
    ),
    Promise(
        "S5-299",
        "Given an engine, then its load is what its schedulers say: who runs, is queued, waits for "
        "pages, is transferred or retracted, and the KV cache that requests use, by phase and "
        "rank; nothing is sent for it, and where they say nothing, nothing is shown of ranks.",
        ours=True,
    ),
    Promise(
        "S5-622",
        "Given what Claude Code sends beside its prompt, then hints and offers are dropped and "
        "named in the answer's head, on /v1/messages and count_tokens, and a line that changes "
        "from session to session is no part of the prompt.",
        ours=True,
    ),
    Promise(
        "S5-623",
        "Given what Codex sends, then its tools in namespaces and its custom tools are called, and "
        "calls come back as Codex knows them; tools that no server here runs are left out and "
        "named.",
        ours=True,
    ),
    Promise(
        "S5-624",
        "Given allowed_tools, then no other tool is called, while the prompt stays the same.",
        ours=True,
    ),
    Promise(
        "S5-625",
        "Given a service_tier, then it is a class of the queue within what the key is allowed; "
        "given a cache_salt, then prefixes are shared only by requests of the same key and salt.",
        ours=True,
    ),
    Promise(
        "S5-626",
        "Given instructions in whatever roles and places, then the model is shown all of them, "
        "whatever its chat template takes.",
        ours=True,
    ),
    Promise(
        "S5-627",
        "Given a value that a model wrote without its type, then it is typed by the tool's schema, "
        "with its references and alternatives, as JSON or as a literal of Python; what a schema "
        "says costs bounded time.",
        ours=True,
    ),
    Promise(
        "S5-628",
        "Given a call within a thought that goes on, then the call is not made; given the end of a "
        "thought without its beginning, then it is not shown, and a body has no thought in its "
        "content.",
        ours=True,
    ),
    Promise(
        "S5-629",
        "Given text about calls, where the family has a marker for real ones, then none is made "
        "of it.",
        ours=True,
    ),
    Promise(
        "S5-630",
        "Given the chat template of Gemma 4, MiniMax M3, Kimi K3, DeepSeek V4.1, Hy3, LFM2.5 or "
        "Step 3.5, then the model's family is found, and what it writes is told apart into "
        "reasoning, content and calls.",
        ours=True,
    ),
    Promise(
        "S5-631",
        "Given a family whose calls end reasoning, and a call before the end marker, then the call "
        "is made and what came before is the reasoning.",
        ours=True,
    ),
    Promise(
        "S5-632",
        "Given return_token_ids, then ids come beside the text, of no text that a hook, a "
        "classifier, a stop string or the client left out.",
        ours=True,
    ),
    Promise(
        "S5-637",
        "Given either priority_order and any priority, then the key's max_priority holds.",
        ours=True,
    ),
    Promise(
        "S5-638",
        "Given any field or type that some dialect knows, then one table, made from the rules by "
        "which bodies are read, says for each dialect whether it is applied, dropped or refused.",
        ours=True,
    ),
    Promise(
        "S5-639",
        "Given a tool of a type that nobody knows, then it is dropped and named, unless it must be "
        "called, is a slip of the pen, or unknown fields are refused.",
        ours=True,
    ),
    Promise(
        "S5-640",
        "Given routers that are killed one after the other, then each that comes learns all that "
        "caches hold, however large they are, and prompts go where they are cached as before.",
        ours=True,
    ),
    Promise(
        "S5-641",
        "Given sessions by any of the headers of session_headers, then each goes on at the prefill "
        "worker that it began at.",
        ours=True,
    ),
    Promise(
        "S5-642",
        "Given a session whose prompts differ at the same early place each time, so that no cache "
        "has what follows, then a metric counts the tokens, and a log line and /debug say where.",
        ours=True,
    ),
    Promise(
        "S5-643",
        "Given a request that its client says to be its session's last, once it has ended, then "
        "the router keeps nothing of the session; the end of a subagent is not its parent's.",
        ours=True,
    ),
    Promise(
        "S5-644",
        "Given nvext in any dialect, then its priority orders the queue within what the key is "
        "allowed, its expected output counts at the decode worker, what nothing follows is named, "
        "and nonsense is refused by its name.",
        ours=True,
    ),
    Promise(
        "S5-645",
        "Given kv_hints of a client, then no engine has them unless frontend and router let them "
        "pass, and then in bounds of size, number and depth.",
        ours=True,
    ),
    Promise(
        "S5-646",
        "Given a chat whose prompt begins as an earlier one of its tenant, then only the rest is "
        "tokenised and hashed, and the tokens and blocks are those of the whole prompt.",
        ours=True,
    ),
    Promise(
        "S5-647",
        "Given prompts of many tenants, then the store of earlier prompts holds no more than its "
        "setting, the tenant with the most makes room, and no tenant's prompt is known to another.",
        ours=True,
    ),
    Promise(
        "S5-648",
        "Given a tokenizer whose parts of a text have other tokens than the text, then a sampled "
        "check finds it, and prompts of the model are tokenised as a whole from then on.",
        ours=True,
    ),
    Promise(
        "S5-650",
        "Given a completion with texts that begin as earlier prompts of its tenant, several in one "
        "body too, then only the rest is tokenised, and tokens and blocks are those of each whole "
        "prompt, with what the tokenizer puts around it.",
        ours=True,
    ),
    Promise(
        "S5-651",
        "Given 80 large bodies of one key at once, then all are read, below the event loop's "
        "priority, and another key's body waits for those being read and one more, a small one for "
        "none.",
        ours=True,
    ),
    Promise(
        "S5-652",
        "Given a body whose process is killed, then its own request alone fails, and what waits "
        "for that process is read by the next.",
        ours=True,
    ),
    Promise(
        "S5-653",
        "Given 10,000 sessions of many tenants, then the store of earlier prompts stays within its "
        "setting, and takes no more memory than its gauge says.",
        ours=True,
    ),
    Promise(
        "S5-654",
        "Given a target for bodies that wait at frontends, then both kinds of autoscaler scale the "
        "frontends by it.",
        ours=True,
    ),
    Promise(
        "S5-649",
        "Given a prompt that begins as an earlier one of its stream, then only the rest travels, "
        "and each worker is given the whole prompt, whatever is killed or forgotten meanwhile.",
        ours=True,
    ),
    Promise(
        "S5-710",
        "Given a prompt that begins as an earlier one of its tenant, then its frontend has the "
        "names by which its beginning travels from the store, as they are for the whole prompt.",
        ours=True,
    ),
    Promise(
        "S5-711",
        "Given a process that serves, then the memory of a large message is kept for the next one, "
        "16 MiB at most.",
        ours=True,
    ),
    Promise(
        "S5-665",
        "Given random conversations with changed turns, tools, thoughts and halves of special "
        "tokens, then each prompt has the same tokens and blocks with the store of earlier prompts "
        "and without, or is refused alike.",
        ours=True,
    ),
    Promise(
        "S5-655",
        "Given a traced request, then each step of its reading has a span below the request's, "
        "wherever its body was read, and so has its wait for a pair; and its legs say what their "
        "tasks and their engines' input took.",
        ours=True,
    ),
    Promise(
        "S5-656",
        "Given a fleet's frontends, when tandem replay runs a trace, then prompts wait for a "
        "process that reads them, a turn is read in the time of its new tokens, and what reading "
        "took and knew is told.",
        ours=True,
    ),
    Promise(
        "S5-666",
        "Given a public configuration, of ModelOpt and compressed-tensors too, when plan-fit reads "
        "the configuration, then weights and KV are within two percent of what the model's files "
        "and SGLang's logs say, with what SGLang copies, or the model is refused by name.",
        ours=True,
    ),
    Promise(
        "S5-667",
        "Given KV over libfabric, then the transport label names the wire where the provider "
        "leaves no choice.",
        ours=True,
    ),
    Promise(
        "S5-700",
        "Given a peer of a simulated engine whose description names a file that is not its KV "
        "memory, of another size, or of a size that may change, when a hand-over begins, then the "
        "file is never mapped, and the hand-over fails with what to install.",
        ours=True,
    ),
    Promise(
        "S5-701",
        "Given the wheels of the checkout, then each distribution has one, every package in them "
        "is typed and has a name of Tandem's, and the tiny model is in one.",
        ours=True,
    ),
    Promise(
        "S5-702",
        "Given a program whose packages are not installed, when it is started, then one line "
        "names the package and what installs it, and the exit status is 2.",
        ours=True,
    ),
    Promise(
        "S5-703",
        "Given nothing but the wheels and what they require, outside the checkout, then up, chat, "
        "a hook, an executor's engines and down work, without torch, NVIDIA's packages or SGLang.",
        ours=True,
    ),
    Promise(
        "S5-704",
        "Given `tandem --help`, then all commands are listed and none is imported.",
        ours=True,
    ),
    Promise(
        "S5-668",
        "Given a worker that is told so, then its waiting and running requests and the share of "
        "its KV cache have the names of vLLM or SGLang too.",
        ours=True,
    ),
    Promise(
        "S5-705",
        "Given a stack's file, when a component takes its part, then it is told what the file's "
        "sections say for it and no more, and messages name the file's own lines.",
        ours=True,
    ),
    Promise(
        "S5-706",
        "Given a stack's file with an unknown name, a key twice, a wrong value, or a setting that "
        "has a section of its own, when it is read, then it is refused with its line.",
        ours=True,
    ),
    Promise(
        "S5-707",
        "Given flags of `tandem up` beside a stack's file, then the flags win.",
        ours=True,
    ),
    Promise(
        "S5-708",
        "Given what `tandem init` writes, or the file at the top of a page about hooks, classifiers"
        " or processors, then `tandem config check` passes it as the start does, and the schema "
        "takes what the settings classes take.",
        ours=True,
    ),
    Promise(
        "S5-709",
        "Given a stack's file, then every value of it is one of the chart's, with its type and "
        "bounds, and the chart's pods are told the same by it.",
        ours=True,
    ),
    # --- S6: the threat model (docs/security/threat-model.md) ---
    Promise(
        "S5-633",
        "Given a request of any service_tier and priority, then its answer names the tier that it "
        "was really in.",
        ours=True,
    ),
    Promise(
        "S5-634",
        "Given what a request has and its answer does without, then metrics count it by name, and "
        "no client adds a name to them.",
        ours=True,
    ),
    Promise(
        "S5-635",
        "Given texts at /v1/moderations, then OpenAI's client reads what the deployment's "
        "classifiers say of each; what they cannot judge is refused by its place, and without "
        "classifiers the error names the setting.",
        ours=True,
    ),
    Promise(
        "S5-636",
        "Given a moderation whose client goes away, whose time runs out or whose frontend shuts "
        "down, then its judgements end; keys take turns, and what finds no place is refused.",
        ours=True,
    ),
    Promise(
        "S6-134",
        "Given what a proxy may read in two ways, when clients share its connections, then each "
        "gets exactly its own answers.",
        ours=True,
    ),
    Promise(
        "S6-135",
        "Given an Upgrade header, then the request is answered as HTTP/1.1 and its body is a body.",
        ours=True,
    ),
    Promise(
        "S6-136",
        "Given more connections than max_connections, then those too many are told so and "
        "closed, and the others are served.",
        ours=True,
    ),
    Promise(
        "S6-137",
        "Given heads or bodies past their bounds, alone or together, then they are refused "
        "unread and memory stays below the sum of the bounds.",
        ours=True,
    ),
    Promise(
        "S6-138",
        "Given a client that sends or reads too slowly, then it is cut off in its time and "
        "nobody is slowed.",
        ours=True,
    ),
    Promise(
        "S6-187",
        "Given whatever a frontend, router or worker holds for others, then it counts against one "
        "budget of bytes, a request past it is refused with 429, and all of it comes back.",
        ours=True,
    ),
    Promise(
        "S6-188",
        "Given a client that reads nothing, then it is noticed at max_backlog_bytes and the bounds "
        "of its socket, also for answers of an ordinary size.",
        ours=True,
    ),
    Promise(
        "S6-189",
        "Given output that finds no room in the budget, then whoever holds the most of it ends "
        "with a typed error, and nobody else.",
        ours=True,
    ),
    Promise(
        "S6-320",
        "Given a stream that shows nothing for sse_keep_alive_seconds, then a comment is sent each "
        "time, no proxy cuts it, and events, usage and metrics are those of one without.",
        ours=True,
    ),
    Promise(
        "S6-321",
        "Given a request that no router has admitted, then nothing of its answer is sent, and a "
        "refusal keeps its status; what fails behind a comment is the stream's last event.",
        ours=True,
    ),
    Promise(
        "S6-322",
        "Given a client that does not read, goes away, or speaks HTTP/1.0, then it is served and "
        "given up as without comments, and gets none while its socket is full.",
        ours=True,
    ),
    Promise(
        "S6-331",
        "Given a request that asks for log-probabilities of its prompt, then each token has what "
        "the model says of it after those before, the first has null, and all come before output.",
        ours=True,
    ),
    Promise(
        "S6-332",
        "Given log-probabilities of a prompt that are too many, or not offered, then the request "
        "is refused by name before it runs; a worker asks by itself.",
        ours=True,
    ),
    Promise(
        "S6-333",
        "Given a prefill that is run again, or one that says too little or too much of a prompt, "
        "then nothing is doubled, and what is missing is an error.",
        ours=True,
    ),
    Promise(
        "S6-139",
        "Given requests sent ahead on a connection, then they are read one at a time, within "
        "bounds, and answered in order.",
        ours=True,
    ),
    Promise(
        "S6-560",
        "Given a client that sends requests ahead of their answers, however many and fast, then "
        "its connection keeps 64 KiB and one read of them, which counts among the held bytes, and "
        "where there is no memory for that the connection is refused with queue_full.",
        ours=True,
    ),
    Promise(
        "S6-140",
        "Given a field that is not offered or not what it should be, then the request is "
        "refused by its name and nothing else notices.",
        ours=True,
    ),
    Promise(
        "S6-300",
        "Given a field that nobody knows, then it is ignored and named in the answer's head, or "
        "refused, as the operator says; what is told and looked at is bounded.",
        ours=True,
    ),
    Promise(
        "S6-301",
        "Given a field that is known and not offered, or a slip of the pen, then the request is "
        "refused, unless its value asks for what is done anyway.",
        ours=True,
    ),
    Promise(
        "S6-302",
        "Given messages as clients' libraries made them, when they are sent back, then they are "
        "read as what they say, and what they say beyond text is refused.",
        ours=True,
    ),
    Promise(
        "S6-380",
        "Given an image, a sound, a film or a file in a prompt, in any dialect, then the request "
        "is refused by name: nothing of it is fetched or opened, and no worker sees it.",
        ours=True,
    ),
    # LoRA adapters (docs/lora.md)
    Promise(
        "S5-410",
        "Given a request whose model is model:adapter or a name for that, then the adapter runs "
        "both of its phases, and all its outputs; /v1/models lists it with its parent.",
        ours=True,
    ),
    Promise(
        "S5-411",
        "Given an adapter that no pair has, then the request ends as one for an unknown model; one "
        "that some pair has runs there.",
        ours=True,
    ),
    Promise(
        "S5-412",
        "Given two workers whose adapters differ in name or files, then no pair is made of them.",
        ours=True,
    ),
    Promise(
        "S5-413",
        "Given a cached prefix, then it serves requests of the same adapter alone, and routers "
        "count it for no other.",
        ours=True,
    ),
    Promise(
        "S5-414",
        "Given a key that lists models, then it may use the adapters that it lists, and no others.",
        ours=True,
    ),
    Promise(
        "S5-415",
        "Given an adapter whose files are missing, are of another model, or ask for what no engine "
        "applies, then the worker does not start, and names it.",
        ours=True,
    ),
    Promise(
        "S5-416",
        "Given hooks, classifiers and audit logs, then each is told which adapter wrote what it "
        "sees; a request that is resumed goes on with its adapter.",
        ours=True,
    ),
    # What SGLang's hand-over moves, and by what (docs/engines/sglang.md)
    Promise(
        "S5-420",
        "Given a decode worker that keeps prefixes, when a prompt begins with one, then prefill "
        "sends the rest alone, both workers count what was sent, and the answer is the same.",
        ours=True,
    ),
    Promise(
        "S5-421",
        "Given a prefix that decode keeps, then it serves requests of the same tenant alone, and "
        "no client is told that it was cached.",
        ours=True,
    ),
    Promise(
        "S5-422",
        "Given Mooncake in place of NIXL, then hand-overs are measured and named as its own, "
        "workers of unequal libraries make no pair, and one without the package does not start, "
        "and names it.",
        ours=True,
    ),
    Promise(
        "S5-423",
        "Given a recipe with a prefix cache outside the GPU, then SGLang takes its arguments, the "
        "pod requests the host's memory that it takes, and prefill reaches the store.",
        ours=True,
    ),
    # A decode worker's token path in several processes (docs/engines/sglang.md)
    Promise(
        "S5-450",
        "Given a decode worker of several token processes, then each is a worker to routers, with "
        "an equal part of its sequences, and one engine sends each the tokens of its own requests.",
        ours=True,
    ),
    Promise(
        "S5-451",
        "Given a token process that is killed or hangs, then its own requests alone end, what they "
        "held in the engine is freed, and it is started again; all end with the first process, and "
        "with the engine each tells its routers.",
        ours=True,
    ),
    Promise(
        "S5-452",
        "Given token processes in a stack or in the chart, then routers find each of them, at a "
        "port of its own that policies open, and the pod requests a core for each.",
        ours=True,
    ),
    Promise(
        "S5-445",
        "Given gRPC's own core or grpc-go at the other end, then every kind of call, its metadata, "
        "windows, deadlines and statuses are as between two of ours; grpcurl may ask every port.",
        ours=True,
    ),
    Promise(
        "S5-446",
        "Given messages that are handed on in the turn in which they come, then they come in "
        "order, one after the other, some in a turn, and the call ends as for one who reads.",
        ours=True,
    ),
    Promise(
        "S5-447",
        "Given an outbox that is written to a call, then what a turn brings leaves as one message "
        "in the next, nothing is taken while the call is full, and a message ends before a status.",
        ours=True,
    ),
    Promise(
        "S5-448",
        "Given a router with nothing to do, then it wakes once a second; what is due is noticed "
        "within a tenth of one, whatever else happens.",
        ours=True,
    ),
    Promise(
        "S5-456",
        "Given steps of an engine, then each is handed on in order, without a task that is woken; "
        "what comes together is one, and what is left comes before an end or a death.",
        ours=True,
    ),
    Promise(
        "S5-457",
        "Given outputs for a process of the same machine, then all come whole and in order past "
        "ZeroMQ, no scheduler waits for a busy process, and one that is started again hears.",
        ours=True,
    ),
    Promise(
        "S6-303",
        "Given a failure that would be the same again, then client libraries are told so in "
        "their own terms.",
        ours=True,
    ),
    Promise(
        "S6-460",
        "Given extra fields that are too many, too large, nested too deeply or no JSON, then the"
        " request is refused and the field named, by frontends, executors and workers.",
        ours=True,
    ),
    Promise(
        "S6-310",
        "Given tools, calls and their results, then the chat template is given them as the model "
        "was trained on them, and a model that takes none says so.",
        ours=True,
    ),
    Promise(
        "S6-311",
        "Given an answer that calls declared tools, then calls, their arguments and ids are told "
        "from text, in bodies and streams alike.",
        ours=True,
    ),
    Promise(
        "S6-313",
        "Given a model that thinks, then its reasoning is told from the answer and counted, and is "
        "left in or out as the request says.",
        ours=True,
    ),
    Promise(
        "S6-314",
        "Given a call that must be made, or a strict tool, then the arguments follow its schema.",
        ours=True,
    ),
    Promise(
        "S6-315",
        "Given more tools, or more calls in a message, than the deployment takes, then the request "
        "is refused by the field's name in every dialect; a call longer than may be held is text.",
        ours=True,
    ),
    Promise(
        "S6-316",
        "Given further names of the served model, then requests, model cards and limits of keys "
        "know it by each of them, answers repeat the one that was asked for, and others are 404.",
        ours=True,
    ),
    Promise(
        "S6-325",
        "Given workers of several models, then each request is read, limited and run as the model "
        "that it names, and none as another; a model that comes is served without a restart, one "
        "that leaves costs only its own requests, with a typed error.",
        ours=True,
    ),
    Promise(
        "S6-326",
        "Given a file of names, then each name's requests are divided by its weights, one user's "
        "go to one model, answers repeat the name, and a change under load loses nothing.",
        ours=True,
    ),
    Promise(
        "S6-327",
        "Given a key that is limited to some models, then it is refused and not shown any other.",
        ours=True,
    ),
    Promise(
        "S6-340",
        "Given a request to /v1/responses, then its answer and its events are of OpenAI's types, "
        "and their items, sent back, are what the model said.",
        ours=True,
    ),
    Promise(
        "S6-341",
        "Given an answer to /v1/responses that was cut off, withheld or failed, then its status "
        "and the stream's last event say so, whatever the settings.",
        ours=True,
    ),
    Promise(
        "S6-342",
        "Given a text.format of /v1/responses, then the answer has that form.",
        ours=True,
    ),
    Promise(
        "S6-343",
        "Given what is not offered at /v1/responses, then it is refused by the name that the "
        "client gave it, with what to do; nothing is stored, and nothing is found again.",
        ours=True,
    ),
    Promise(
        "S6-350",
        "Given a request to /v1/messages, then its answer and its events have Anthropic's shape, "
        "and their blocks, sent back, are what the model said.",
        ours=True,
    ),
    Promise(
        "S6-351",
        "Given an answer to /v1/messages, then its stop_reason says how it ended, a refusal where "
        "it was withheld, and arguments that are no JSON object are given as they were written.",
        ours=True,
    ),
    Promise(
        "S6-352",
        "Given forms, budgets of thinking and choices of tools at /v1/messages, then they are "
        "those of chats, and count_tokens counts what such a request has.",
        ours=True,
    ),
    Promise(
        "S6-353",
        "Given a failure at /v1/messages, before its body is read or in its stream, then it has "
        "Anthropic's shape and names the field.",
        ours=True,
    ),
    Promise(
        "S6-360",
        "Given `tandem bench`, then its figures are those of the tool's records, and goodput "
        "counts exactly the whole answers that met both objectives.",
        ours=True,
    ),
    Promise(
        "S6-361",
        "Given a frontend that is not there, a wrong key, or options that cannot be, then `tandem "
        "bench` says so in one sentence and sends nothing; the key is in no argument and no file.",
        ours=True,
    ),
    Promise(
        "S6-362",
        "Given a trace, then its requests are sent at its times with its lengths, and a line "
        "that is none is refused by its number.",
        ours=True,
    ),
    Promise(
        "S6-363",
        "Given an interrupt of `tandem bench`, then what came until then is shown, and nothing "
        "that it started runs on.",
        ours=True,
    ),
    Promise(
        "S6-141",
        "Given a request of many sequences, then its task goes to each worker once, and what a "
        "router holds for it is bounded.",
        ours=True,
    ),
    Promise(
        "S6-185",
        "Given a request of any size, or one whose answer is large, then the frontend's event loop "
        "reads and writes a bounded part of it at once, and the rest beside it or later.",
        ours=True,
    ),
    Promise(
        "S6-142",
        "Given a request that may have killed its worker, then it risks one further worker at "
        "most, none if it was alone there, and is named in the log without its content.",
        ours=True,
    ),
    Promise(
        "S6-143",
        "Given what the operator does not allow, then neither frontend nor router lets it pass, "
        "whoever asks.",
        ours=True,
    ),
    Promise(
        "S6-144",
        "Given a request, then no field of it is ever code: processors are names that are "
        "looked up and JSON that is checked.",
        ours=True,
    ),
    Promise(
        "S6-184",
        "Given a form of an answer that is too dear to compile, then it costs its own request "
        "alone, also where no frontend checked it.",
        ours=True,
    ),
    Promise(
        "S6-145",
        "Given a chat whose template fails or tries to escape, then that request is refused.",
        ours=True,
    ),
    Promise(
        "S6-146",
        "Given ids of a client, then answers and audit have ids of ours, and a traceparent is "
        "followed only where the gateway is trusted.",
        ours=True,
    ),
    Promise(
        "S6-147",
        "Given a flood of bad requests or wrong keys, then the log says each kind in a few "
        "lines and counts the rest; nothing a client sends begins a line.",
        ours=True,
    ),
    Promise(
        "S6-423",
        "Given whatever text in a message, a field, an exception or what an engine printed last, "
        "then it begins no line of a log and moves no terminal's cursor.",
        ours=True,
    ),
    Promise(
        "S6-148",
        "Given a hook or a blocking classifier that fails, hangs or dies, then nothing of that "
        "chunk is shown: there is no way round it.",
        ours=True,
    ),
    Promise(
        "S6-149",
        "Given clients that go away in any phase, then their requests are cancelled and nothing "
        "of them stays.",
        ours=True,
    ),
    Promise(
        "S6-440",
        "Given fields or ready-made processors of a client that contradict each other, in any "
        "combination, then the answer is 400, and never 5xx.",
        ours=True,
    ),
    Promise(
        "S6-441",
        "Given `min_tokens` above what may come at most, then the request is refused with "
        "that field before anything runs.",
        ours=True,
    ),
    Promise(
        "S6-442",
        "Given `min_tokens` beside a form of which a shorter answer is known, then the "
        "request is refused; beside one that cannot end before, nothing changes.",
        ours=True,
    ),
    Promise(
        "S6-443",
        "Given a grammar or schema that no finite text has, then the request is refused as "
        "the client's error; one that may end is answered.",
        ours=True,
    ),
    Promise(
        "S6-444",
        "Given a contradiction that is seen only while it runs, then that request ends with a "
        "4xx code of its own, and counts as the client's; code of a deployment that leaves no "
        "token stays the server's error.",
        ours=True,
    ),
    Promise(
        "S6-445",
        "Given `min_tokens`, then neither the end, a stop token, a stop string nor a stop "
        "word ends the answer before.",
        ours=True,
    ),
    Promise(
        "S6-446",
        "Given workers whose context is another than the model's, then `max_model_len` of "
        "/v1/models and /tokenize is theirs.",
        ours=True,
    ),
    Promise(
        "S6-372",
        "Given a port of the API whose operator names neither `/metrics` nor `/ping`, then neither "
        "is there, with a key or without; scrapes that come at once are written once.",
        ours=True,
    ),
    Promise(
        "S6-373",
        "Given a classifier that fails, is late, hangs, ends its process or cannot be loaded, then "
        "moderations are errors and never `flagged: false`, and all else is served meanwhile.",
        ours=True,
    ),
    Promise(
        "S6-374",
        "Given prompts that are kept for their next turn, then requests of another key are read no "
        "faster for them, and all of them take no more memory than `prefix_store_mb`.",
        ours=True,
    ),
    Promise(
        "S6-150",
        "Given a server on a loopback address without keys, then it answers to local names "
        "alone and takes JSON alone, and no page reads an answer unless its origin is named.",
        ours=True,
    ),
    Promise(
        "S6-370",
        "Given the setting `playground`, then /playground is a page that no other page frames and "
        "no other script runs in; without it there is none.",
        ours=True,
    ),
    Promise(
        "S6-371",
        "Given whatever a model writes, then the playground shows it as text, in elements of a "
        "fixed list; the key is kept in its memory alone, and no other server is called.",
        ours=True,
    ),
    Promise(
        "S6-151",
        "Given anything but a whole key, then the API stays closed; given keys without a key "
        "among them, then nothing starts.",
        ours=True,
    ),
    Promise(
        "S6-152",
        "Given a key file that changes, then revoked keys are refused, a bad file leaves the "
        "last good keys and says so, and an emptied one revokes all.",
        ours=True,
    ),
    Promise(
        "S6-153",
        "Given a key's limits, then requests and tokens a minute, open requests, n, priority, "
        "models and processors are held to them.",
        ours=True,
    ),
    Promise(
        "S6-154",
        "Given a key at ten times its share, then another key's p99 time to first token moves "
        "by less than a tenth beyond one slot's turn.",
        ours=True,
    ),
    Promise(
        "S6-155",
        "Given prompts of another key, then neither the prefix cache nor cached_tokens tells of "
        "them unless the operator lets keys share one.",
        ours=True,
    ),
    Promise(
        "S6-422",
        "Given a cache that knows KV by its tokens alone, then it is refused beside LoRA adapters, "
        "and no key finds in it what another key had computed.",
        ours=True,
    ),
    Promise(
        "S6-156",
        "Given logs, metrics and spans, then no prompt, output or key is in them; given the "
        "audit log, then its owner alone reads it, and content is in it only where asked for.",
        ours=True,
    ),
    Promise(
        "S6-157",
        "Given a caller without the role that a port is for, then it gets nothing of any kind "
        "of call, and the log names it.",
        ours=True,
    ),
    Promise(
        "S6-158",
        "Given a server that bears another role or comes of another CA, then who dials it does "
        "not believe it.",
        ours=True,
    ),
    Promise(
        "S6-159",
        "Given a pod, then it holds its own role's certificate and no other, and the CA's key "
        "is in none of them.",
        ours=True,
    ),
    Promise(
        "S6-500",
        "Given a Secret of the chart's certificates that was deleted, emptied or replaced, then it "
        "is filled again within a minute, with and without an upgrade, and what replaces the "
        "chart's objects keeps the CA.",
        ours=True,
    ),
    Promise(
        "S6-501",
        "Given certificates that cannot be kept, then a metric, an alert and readiness say it.",
        ours=True,
    ),
    Promise(
        "S6-160",
        "Given certificates that end, are renewed, or are half replaced, then an ended one "
        "opens nothing and a renewal needs no restart.",
        ours=True,
    ),
    Promise(
        "S6-420",
        "Given a TLS session of before, then it is not resumed between components, and nothing "
        "older than TLS 1.3 is spoken there.",
        ours=True,
    ),
    Promise(
        "S6-421",
        "Given an open connection whose peer's certificate ends or whose CA is replaced, then it "
        "is closed within a minute, by both ends, and the log says why.",
        ours=True,
    ),
    Promise(
        "S6-161",
        "Given the chart's NetworkPolicies, then a strange pod reaches the public port and "
        "nothing else.",
        ours=True,
    ),
    Promise(
        "S6-162",
        "Given a component's pod, then it may ask the API for nothing but what it needs, and "
        "only the router and what makes certificates hold a token.",
        ours=True,
    ),
    Promise(
        "S6-163",
        "Given slow or many clients of a metrics port, then probes are answered all the same.",
        ours=True,
    ),
    Promise(
        "S6-164",
        "Given a stack on one machine, then it opens no port to another.",
        ours=True,
    ),
    Promise(
        "S6-165",
        "Given a gRPC port, then reflection is off unless asked for.",
        ours=True,
    ),
    Promise(
        "S6-166",
        "Given a message of a frontend that cannot be, then its sequence is refused alone, or "
        "its stream ends, and no other frontend notices.",
        ours=True,
    ),
    Promise(
        "S5-424",
        "Given h2spec's strict cases against each gRPC port of a stack, then those that fail are "
        "listed with a reason, and no other does.",
        ours=True,
    ),
    Promise(
        "S5-425",
        "Given a measured table whose code has changed since, then its page says so.",
        ours=True,
    ),
    Promise(
        "S5-426",
        "Given spoilt frames of either end of a gRPC connection, then nothing escapes, what is "
        "written, kept and done in a turn for it is bounded, and a client beside is served.",
        ours=True,
    ),
    Promise(
        "S6-167",
        "Given a task or leg that cannot be, then the worker refuses it alone, trusting no "
        "check but its own.",
        ours=True,
    ),
    Promise(
        "S6-375",
        "Given a message that names what no earlier prompt of its stream began with, or stands for "
        "more than a message may hold, then its stream alone ends; and what streams keep of "
        "prompts takes no more memory than `prompt_chunks_mb`, and serves no prompt of another "
        "key.",
        ours=True,
    ),
    Promise(
        "S6-186",
        "Given a message of any content, then a router's or a worker's event loop parses a bounded "
        "part of it at once, and acts on it in bounded slices.",
        ours=True,
    ),
    Promise(
        "S5-480",
        "Given numbers of ranks, token processes and nodes, then the chart renders them exactly "
        "where a worker starts with them.",
        ours=True,
    ),
    Promise(
        "S5-481",
        "Given a claim for compiled kernels, then every pod of that worker, on each of its nodes, "
        "mounts it where the image's compilers keep what they compile.",
        ours=True,
    ),
    Promise(
        "S5-482",
        "Given the recipe in which decode writes the KV of answers to a store, then SGLang takes "
        "its arguments, and both phases name and lay out pages alike.",
        ours=True,
    ),
    Promise(
        "S5-560",
        "Given a fleet whose last pair has gone, then /ready stays 200 as long as requests may "
        "wait for another, and /ready/pair is 503 until one takes work.",
        ours=True,
    ),
    Promise(
        "S5-561",
        "Given a router that is lost, then requests that waited there for a pair go to another "
        "router, once, and those that it had begun end with router_lost.",
        ours=True,
    ),
    Promise(
        "S5-580",
        "Given a request that waits at a router for workers, then its report and its story tell "
        "for how long and why, after its end too, and its timeline counts no second twice.",
        ours=True,
    ),
    Promise(
        "S5-715",
        "Given a sequence that waited, then its story says who had the slots, which workers would "
        "not do, what prefill had to compute before, who had more of its prompt, and where the "
        "time of its legs went beside what so many tokens usually take.",
        ours=True,
    ),
    Promise(
        "S5-716",
        "Given a frontend or a router, when its admin port is asked, then it lists the requests "
        "that ended last and those with the longest delay, and nothing of what they said.",
        ours=True,
    ),
    Promise(
        "S5-717",
        "Given a request that has ended, then each second of it is in one of the parts read, "
        "queue, prefill, kv, decode, hooks, client and other, and the report, `tandem demo` and "
        "`tandem why` have the same ones.",
        ours=True,
    ),
    Promise(
        "S5-718",
        "Given a request that was slow for one of twenty causes, when `tandem why` is told its "
        "trace id and no more, then it names the cause first for nineteen of them.",
        ours=True,
    ),
    Promise(
        "S5-719",
        "Given a trace id, the last slow request or the slowest ones, then `tandem why` says where "
        "their time went and why, from the components or, a day later, from their logs; its "
        "status says whether it could.",
        ours=True,
    ),
    Promise(
        "S5-581",
        "Given a simulated engine, then `/v1/models`, the playground, `tandem up` and `tandem "
        "chat` say that its answers are random words, wherever it runs, and say so of no other.",
        ours=True,
    ),
    Promise(
        "S5-582",
        "Given a command of Tandem's that still imports, when it is sent SIGINT or SIGTERM, then "
        "it ends by that signal and prints nothing.",
        ours=True,
    ),
    Promise(
        "S5-583",
        "Given a deployment that names `extra_fields`, then `/openapi.json` and `/docs` describe "
        "them as fields of every body that takes them.",
        ours=True,
    ),
    Promise(
        "S6-190",
        "Given a voucher that is stale, foreign, altered or used, then it is refused by name; "
        "given KV that nobody fetches, then its lease ends and its bounds hold.",
        ours=True,
    ),
    Promise(
        "S6-168",
        "Given what a worker says and cannot be, then its own leg fails and others go on.",
        ours=True,
    ),
    Promise(
        "S6-169",
        "Given a peer that does not read, then it alone is given up, at its bound.",
        ours=True,
    ),
    Promise(
        "S6-170",
        "Given a worker or router that is silent or lost, then its requests end with a typed error "
        "or go elsewhere, in bounded time; the own pause is not taken for its silence.",
        ours=True,
    ),
    Promise(
        "S6-181",
        "Given a worker whose output cannot be read, then the sequences it was of end with a typed "
        "error, no other does, and a worker that goes on is ejected.",
        ours=True,
    ),
    Promise(
        "S6-182",
        "Given a batch of which one part fails, then it costs its own sequence and the rest is "
        "carried out.",
        ours=True,
    ),
    Promise(
        "S6-381",
        "Given pages with another tenant's KV, then decode answers nothing from them.",
        ours=True,
    ),
    Promise(
        "S6-183",
        "Given what a simulated engine says of a hand-over and cannot be, then its room fails "
        "alone, or its stream ends.",
        ours=True,
    ),
    Promise(
        "S6-191",
        "Given a gRPC peer that breaks HTTP/2, sends more than it may, or asks for what it does "
        "not read, then its own call or connection ends, which says why, and others go on.",
        ours=True,
    ),
    Promise(
        "S6-400",
        "Given frames of any content from a gRPC peer, then its connection takes a bounded part of "
        "a turn of the loop, counted in what frames hold, and one that goes on to send frames that "
        "bring nothing is ended with ENHANCE_YOUR_CALM.",
        ours=True,
    ),
    Promise(
        "S6-401",
        "Given table sizes that a gRPC peer changes for ever, then nothing of them is kept or said "
        "again.",
        ours=True,
    ),
    Promise(
        "S6-402",
        "Given a gRPC call whose metadata is larger than it may be, then it alone is refused, and "
        "others of its connection go on.",
        ours=True,
    ),
    Promise(
        "S6-403",
        "Given a request, a frame or a TLS connection that RFC 9113 forbids, then its stream or "
        "its connection ends, as the RFC says which.",
        ours=True,
    ),
    Promise(
        "S6-404",
        "Given messages that nobody reads, then what is kept of a gRPC connection is bounded, and "
        "counts in the budget of the component that a client dialled.",
        ours=True,
    ),
    Promise(
        "S6-406",
        "Given gRPC connections without calls, old ones, or too many of one client, as settings "
        "say, then they are closed, each after its client was told, and no call fails by it.",
        ours=True,
    ),
    Promise(
        "S6-192",
        "Given a gRPC server that says what cannot be, is not there or falls silent, then each "
        "call to it ends with a status, in bounded time.",
        ours=True,
    ),
    Promise(
        "S5-540",
        "Given a test that fails, when all have run, then it runs once more, alone: what passes "
        "then is named as unsteady with its reason, and what fails again fails the run.",
        ours=True,
    ),
    Promise(
        "S5-541",
        "Given tests that are skipped, when a run ends, then they are counted by reason.",
        ours=True,
    ),
    Promise(
        "S6-171",
        "Given an answer of a hook that is no verdict, or anything it raises, then its own "
        "sequence fails closed and no other notices.",
        ours=True,
    ),
    Promise(
        "S6-172",
        "Given a hook in a pool that hangs, then its request ends closed in its time and others "
        "go on.",
        ours=True,
    ),
    Promise(
        "S6-173",
        "Given a hook in a pool that takes memory or sends without end, then its process is "
        "replaced, its request fails closed, and the worker holds no more than its bounds.",
        ours=True,
    ),
    Promise(
        "S6-174",
        "Given a hook or classifier, then what it is given cannot be changed and no other sees "
        "what it did to it.",
        ours=True,
    ),
    Promise(
        "S6-175",
        "Given a logits processor that fails, then its own request ends closed and the other "
        "rows of the batch are what they would have been.",
        ours=True,
    ),
    Promise(
        "S6-176",
        "Given what is no good answer of a service, then it is a failure with a name, read up "
        "to its bound and no further.",
        ours=True,
    ),
    Promise(
        "S6-177",
        "Given bytes beside an answer, then they reach no other call.",
        ours=True,
    ),
    Promise(
        "S6-178",
        "Given a service of an unknown authority, then it is refused; its key shows itself "
        "nowhere.",
        ours=True,
    ),
    Promise(
        "S6-179",
        "Given a build, then packages are installed by hash, actions are named by commit, and "
        "images run without rights.",
        ours=True,
    ),
    Promise(
        "S6-180",
        "Given a model that is fetched, then its folder is whole or not taken for one.",
        ours=True,
    ),
    Promise(
        "S6-240",
        "Given an answer as a known family writes it, then reasoning, content and calls come out "
        "as the model wrote them; a call of a tool that was not declared is text.",
        ours=True,
    ),
    Promise(
        "S6-241",
        "Given calls that a grammar forced into a family's envelope, or into plain JSON, then the "
        "parser of that family reads them.",
        ours=True,
    ),
    Promise(
        "S6-242",
        "Given any answer in any pieces, then its parser raises nothing, makes the same parts, and "
        "loses, doubles and moves no character.",
        ours=True,
    ),
    Promise(
        "S6-243",
        "Given a call that is faulty or cut off, then what came of its arguments stays, and what "
        "is no call is text.",
        ours=True,
    ),
    Promise(
        "S6-244",
        "Given an answer that keeps a call open for ever, then what is held of it is bounded, and "
        "its parser's time grows with its length alone.",
        ours=True,
    ),
    Promise(
        "S6-520",
        "Given modules that are called as Tandem's components, in the folder where Tandem is "
        "started or on PYTHONPATH, then no process of Tandem runs them in place of its own.",
        ours=True,
    ),
    Promise(
        "S6-521",
        "Given a foreground `tandem up` whose terminal ends, or which is killed, then none of its "
        "processes is left.",
        ours=True,
    ),
    Promise(
        "S6-522",
        "Given settings with which a component would not start, then `tandem config check` refuses "
        "them as the start does, with the line of the file: names that are none, keys given twice, "
        "values out of range, code that cannot be imported or built.",
        ours=True,
    ),
    Promise(
        "S6-523",
        "Given any settings, then what `tandem config` prints of them is a settings file that says "
        "the same, but for secrets.",
        ours=True,
    ),
    Promise(
        "S5-405",
        "Given a gRPC server that takes no more calls at once, or none any more, then calls to it "
        "wait, or go to another connection.",
        ours=True,
    ),
    Promise(
        "S6-524",
        "Given the hook of the page on first steps, then it shows nothing of what it guards.",
        ours=True,
    ),
    Promise(
        "S5-311",
        "Given any component's log lines, then they name it, its host and its address alike.",
        ours=True,
    ),
    Promise(
        "S5-312",
        "Given a value of the chart that cannot work, then it is refused by name when the chart is "
        "rendered: nulls, names, ports, items of lists, labels.",
        ours=True,
    ),
    Promise(
        "S5-313",
        "Given a container of the chart that fails, or a test, then its last words are where "
        "kubectl describe and helm test --logs look for them.",
        ours=True,
    ),
    Promise(
        "S5-314",
        "Given a namespace that denies all traffic, has a quota on limits, or is OpenShift's, then "
        "every pod of the chart runs there, those of tests, downloads and certificates among them.",
        ours=True,
    ),
    Promise(
        "S5-315",
        "Given what a platform asks of Services, monitors, probes, rollouts and names, then values "
        "of the chart say it.",
        ours=True,
    ),
    Promise(
        "S5-316",
        "Given workers that are scaled to nothing, when a request comes, then it waits for the "
        "workers that are started for it.",
        ours=True,
    ),
    Promise(
        "S5-317",
        "Given a model in a bucket of S3 or of Google's storage, then it is fetched whole or not "
        "at all, and what has come is not fetched again.",
        ours=True,
    ),
    Promise(
        "S5-330",
        "Given workers that serve both phases, when they stand alone, then their model is served "
        "as by pairs: hooks in both phases, retries on another, nothing while scaled to nothing.",
        ours=True,
    ),
    Promise(
        "S5-331",
        "Given such workers beside pairs, when a request comes, then it goes where its finish is "
        "predicted earlier, and a metric, the story and the trace say which way and why.",
        ours=True,
    ),
    Promise(
        "S5-360",
        "Given a trace and a fleet, when tandem replay runs them, then the router's own core and "
        "policies choose, and each time is what the fleet's table makes of it.",
        ours=True,
    ),
    Promise(
        "S5-361",
        "Given the same trace, fleet and seed, then tandem replay says the same.",
        ours=True,
    ),
    Promise(
        "S5-362",
        "Given a line of a trace, a fleet or a table of times that cannot be, then tandem replay "
        "refuses it by its place before anything runs.",
        ours=True,
    ),
    Promise(
        "S5-363",
        "Given load below what prefill can do, then the policy prefix gives no later first token "
        "than least_loaded by more than a hundredth, and 1, 2 and 8 routers find about as much in "
        "caches.",
        ours=True,
    ),
    Promise(
        "S5-364",
        "Given a deployment with one pair and nothing to do, when tandem measure-times asks it, "
        "then its table has the times of its workers.",
        ours=True,
    ),
    # No answer from wrong KV (docs/design/0030-the-tag-of-a-hand-over.md)
    Promise(
        "S5-690",
        "Given KV of another hand-over, prompt, model, LoRA adapter or cache salt, or pages of "
        "decode that were given away meanwhile, then no token comes of it: the hand-over fails as "
        "`kv_corrupt`, which says what differs.",
        ours=True,
    ),
    Promise(
        "S5-691",
        "Given a transfer of the sim engine that is late, stale, torn or doubled, or pages that "
        "are reused before they are written, then no answer is wrong, and no good hand-over is "
        "refused.",
        ours=True,
    ),
    Promise(
        "S5-692",
        "Given legs of a pair that are of different prompts or cache salts, on any engine, then "
        "decode shows nothing and the leg may be tried again.",
        ours=True,
    ),
    Promise(
        "S5-697",
        "Given a transfer between real SGLang engines that is late, stale, torn or doubled, pages "
        "that are reused before they are written, metadata of another hand-over, or legs of other "
        "prompts, tenants or adapters, then no answer is wrong, and no good hand-over is refused.",
        ours=True,
    ),
    Promise(
        "S5-694",
        "Given what SGLang says of KV or metadata that were refused, then the request ends as "
        "`kv_corrupt` and may be tried again.",
        ours=True,
    ),
    Promise(
        "S5-695",
        "Given a hand-over or a canary that hangs, then the worker and the router say so every "
        "30 s, with whom it hangs.",
        ours=True,
    ),
    Promise(
        "S5-696",
        "Given a pair that is being proved and no other, then `no_pair` says so, and for how long.",
        ours=True,
    ),
    Promise(
        "S5-503",
        "Given an engine that loads, then its worker answers probes and scrapes from its first "
        "second, and is not ready.",
        ours=True,
    ),
    Promise(
        "S5-504",
        "Given a first load that takes as long as the values allow, then no alert calls it an "
        "outage, and one says when it is long.",
        ours=True,
    ),
    Promise(
        "S5-505",
        "Given the only worker of a phase, or the only router, that goes, then requests wait as "
        "long as the next one's start may take.",
        ours=True,
    ),
    Promise(
        "S5-506",
        "Given a value of the chart that cannot work, then it is refused before anything is "
        "applied, by name.",
        ours=True,
    ),
    Promise(
        "S5-507",
        "Given a LimitRange, then none of its limits is below what a pod of the chart that knows "
        "its need requests.",
        ours=True,
    ),
    Promise(
        "S5-508",
        "Given a release without frontends, then every dashboard can be narrowed to it.",
        ours=True,
    ),
    Promise(
        "S5-620",
        "Given a program's hook and engines in another process, as SGLang's are, then the object "
        "itself judges, in the program; a call that is cancelled there is cancelled here, and what "
        "fails, or whose process ends, is told in bounded time.",
        ours=True,
    ),
    Promise(
        "S5-621",
        "Given a pair of a program's own engines, then both halves of a request run there; once a "
        "hook is registered no first token is shown before it has judged, of a request that waited "
        "either, and a second half is judged whole.",
        ours=True,
    ),
    Promise(
        "S5-725",
        "Given a pair on vLLM, then decode reads the pages that prefill computed, its first token "
        "is prefill's, and both legs settle by one word of it; nothing of vLLM is replaced for "
        "that.",
        ours=True,
    ),
    Promise(
        "S5-726",
        "Given KV that decode was told of, then it stays until decode says that it is done or the "
        "lease is over, whatever becomes of the request or the stream; KV that nobody was told of "
        "is free with its request.",
        ours=True,
    ),
    Promise(
        "S5-727",
        "Given KV that is read after its lease, then no token of it is shown: decode counts the "
        "lease from before it asked, and the request fails with an error that may be tried again.",
        ours=True,
    ),
    Promise(
        "S5-728",
        "Given a room on vLLM, then one decode engine is told of its KV, and no other one can end "
        "it.",
        ours=True,
    ),
    Promise(
        "S5-729",
        "Given a logits processor that raises in vLLM's process, or whatever else goes wrong with "
        "a row there, then its request ends with the error and the engine serves on.",
        ours=True,
    ),
    Promise(
        "S5-730",
        "Given NIXL's side channel of vLLM, which asks nobody who he is, then it listens at the "
        "worker's address for prefill alone, and elsewhere on loopback.",
        ours=True,
    ),
    Promise(
        "S5-731",
        "Given a worker on vLLM that is killed, while it loads or later, then vLLM's process ends "
        "with it; Ctrl-C is left to the worker.",
        ours=True,
    ),
    Promise(
        "S5-740",
        "Given a page below a folder docs/, then the site's navigation lists it exactly once; a "
        "page that is left out, listed twice or gone fails the tests.",
        ours=True,
    ),
    Promise(
        "S5-741",
        "Given a question of the documentation's index, then its row names a page of the site, "
        "and the site's build fails where the site's search does not find that page.",
        ours=True,
    ),
    Promise(
        "S5-732",
        "Given a seed and a long prompt on vLLM on a CPU, then the prompt is computed in one step: "
        "vLLM's engine would end behind the first chunk of it.",
        ours=True,
    ),
    Promise(
        "S5-851",
        "Given mixed requests of a pair of vLLM workers whose KV cache is full again and again, "
        "then each is answered as by one vLLM: seeds, penalties, processors, forms, stop strings "
        "and log-probabilities.",
        ours=True,
    ),
    Promise(
        "S5-852",
        "Given LoRA adapters on vLLM, then requests without one are answered by the model alone, "
        "whoever shares their batch; and an adapter that vLLM cannot apply is refused at the "
        "start.",
        ours=True,
    ),
    Promise(
        "S5-853",
        "Given any argument of vLLM in engine_args, then it reaches vLLM or is refused by name "
        "with the reason.",
        ours=True,
    ),
    Promise(
        "S5-854",
        "Given hand-overs of vLLM that are taken late, twice or never, while other prompts take "
        "the pages, then no token is another prompt's, and each ends.",
        ours=True,
    ),
    Promise(
        "S5-856",
        "Given a vLLM that lacks what Tandem uses, then the worker does not start, and names it.",
        ours=True,
    ),
    Promise(
        "S5-857",
        "Given tensor-parallel ranks of vLLM in both phases, then a pair answers as with one rank "
        "each, ends where a rank dies, and leaves no process behind where it is killed.",
        ours=True,
    ),
    Promise(
        "S5-855",
        "Given a process of a vLLM worker, or the process that computes, that is killed or stopped "
        "under load, then no answer is wrong, no request hangs, and the worker comes back.",
        ours=True,
    ),
    Promise(
        "S5-866",
        "Given strangers' bytes and messages at the port at which vLLM's decode asks how prefill's "
        "memory is read, then prefill's engine goes on, and decode is answered.",
        ours=True,
    ),
    Promise(
        "S5-865",
        "Given vLLM workers under load whose clients go away, or whose ports get strangers' bytes, "
        "then no answer is wrong, no request hangs, and nothing is left open.",
        ours=True,
    ),
    Promise(
        "S5-780",
        "Given a traced request of a session, then the request's span has the session's digits as "
        "its conversation, as the router's log has them; never the client's words, nor what "
        "follows from a user's name.",
        ours=True,
    ),
    Promise(
        "S5-781",
        "Given `gen_ai_metrics`, then requests, first tokens, the time between tokens and tokens "
        "have the names, buckets and labels of OpenTelemetry's conventions, with what Tandem's own "
        "metrics measured; no client makes series, and without the setting there are none.",
        ours=True,
    ),
    Promise(
        "S5-782",
        "Given requests of one key with fairness ids in a gateway's header, when they wait, then "
        "flows take turns: beside a flow at ten times its share another's p99 to its turn moves by "
        "less than a tenth beyond one slot's turn.",
        ours=True,
    ),
    Promise(
        "S5-783",
        "Given a key whose requests each invent a fairness id, or are due at once, then the key "
        "gets its own share and places in the queue, and no other key waits longer.",
        ours=True,
    ),
    Promise(
        "S5-784",
        "Given a gateway's objective for first tokens, then of a flow and priority what is due "
        "first is admitted first and what says nothing last; no key, flow or priority is passed.",
        ours=True,
    ),
    Promise(
        "S5-785",
        "Given any gateway headers, then ids and numbers are bounded, and an error names the "
        "header; a flow takes no more places than it leaves and leaves nothing behind, and to find "
        "the next costs the same however many flows wait.",
        ours=True,
    ),
    Promise(
        "S5-786",
        "Given a gateway's objective for output tokens, or the name of one, then it changes "
        "nothing, and the answer's head and a metric name its header.",
        ours=True,
    ),
    Promise(
        "S5-787",
        "Given `kv_events` at a prefill or aggregated worker, then a subscriber that reads vLLM's "
        "events of KV caches holds the blocks that the worker's cache holds, with their tokens, "
        "adapters and salts, in messages of a bounded size; decode publishes nothing.",
        ours=True,
    ),
    Promise(
        "S5-788",
        "Given a subscriber to KV events that is slow, away or late, then no worker waits for it; "
        "it sees by the numbers what it missed, and is sent again what is kept of that, whatever "
        "others ask for.",
        ours=True,
    ),
    Promise(
        "S5-789",
        "Given `kv_events` that cannot be (a wrong field, an address that is taken, an engine that "
        "tells nothing of its cache, no pyzmq), then the worker does not start, and says which in "
        "a sentence.",
        ours=True,
    ),
    Promise(
        "S5-792",
        "Given a request of one output with a report that waits in a router's queue, then its "
        "frontend is told why at once and each second, and what it is behind as prefill begins: "
        "causes and counts, no name of others; of many that wait a bounded number is told, and "
        "who asks for no report is told nothing.",
        ours=True,
    ),
    Promise(
        "S5-793",
        "Given a stream with a report that has nothing to show, then comments say what it waits "
        "for, on one line each and none behind an event, which clients pass over; without a "
        "report there are none.",
        ours=True,
    ),
    Promise(
        "S5-850",
        "Given `engine.type: vllm`, then the chart gives each worker vLLM's image, accelerators "
        "and options that vLLM takes; the ports of its hand-over, whose side channel asks for no "
        "certificate, are fixed and open to decode's pods alone; it never pairs with SGLang; and "
        "what vLLM cannot do here is refused by name before anything is installed.",
        ours=True,
    ),
    Promise(
        "S5-863",
        "Given the image `tandem-vllm`, then it is vLLM's own of the release that the kit is for, "
        "with Tandem laid over it by hash, and the build stops by name on any other; a release "
        "builds, signs and names it in the chart, and each night it is scanned.",
        ours=True,
    ),
    Promise(
        "S5-861",
        "Given `tandem plan-fit --engine vllm`, then the command says what vLLM on one GPU leaves "
        "for KV and how many sequences that holds, no more than vLLM's own logs say of models that "
        "are known, and refuses by name what no worker of vLLM takes.",
        ours=True,
    ),
    Promise(
        "S5-862",
        "Given a recipe for vLLM, then the chart takes its file, workers are told the options that "
        "their memory was reckoned with, and the page says of memory what `tandem plan-fit` says.",
        ours=True,
    ),
    Promise(
        "S5-880",
        "Given the engine option `model_runner: v2`, then in vLLM's own V2 runner processors, "
        "penalties and prefill's token steer a request's rows as they do with V1: whatever slot "
        "the request has, whose that was before, and also behind a time out of the batch.",
        ours=True,
    ),
    Promise(
        "S5-881",
        "Given `model_runner: v2` and a seed, then an answer that goes on behind tokens of another "
        "pair draws what it would have drawn.",
        ours=True,
    ),
    Promise(
        "S5-882",
        "Given workers of two model runners, then they never make a pair; a vLLM whose V2 runner "
        "has no processors is refused by the option's name.",
        ours=True,
    ),
    Promise(
        "S5-864",
        "Given a worker on vLLM, then each metric of engines that dashboards and alerts read is "
        "there by the same name and labels, but for units and speculative decoding, of which "
        "vLLM has none here.",
        ours=True,
    ),
)


def gaps() -> dict[str, str]:
    """Every promise that is not held, with the reason."""
    return {promise.id: reason for promise in PROMISES if (reason := GAPS.get(promise.id))}


@cache
def proofs(root: Path = ROOT) -> dict[str, set[str]]:
    """Promise id -> the tests that name it, as "file::function", or "file::case" of a trace."""
    found: dict[str, set[str]] = {}
    for path in sorted(path for each in FOLDERS for path in root.glob(f"{each}/**/test_*.py")):
        text = path.read_text(encoding="utf-8")
        for promise, where in _marks(ast.parse(text)) if ".promise(" in text else ():
            found.setdefault(promise, set()).add(f"{path.relative_to(root)}::{where}")
    for path in sorted(path for each in FOLDERS for path in root.glob(f"{each}/**/*_traces/*.txt")):
        for promise, where in _marks_of_cases(path.read_text(encoding="utf-8")):
            found.setdefault(promise, set()).add(f"{path.relative_to(root)}::{where}")
    return found


def _marks_of_cases(text: str) -> Iterator[tuple[str, str]]:
    """Those of a case, and those of its file: see tests/unit/trace_files.py."""
    head, *cases = re.split(r"^== ", text, flags=re.MULTILINE)
    for case in cases:
        title, _, own = case.partition("\n")[0].partition(" (S")
        yield from ((promise, title) for promise in re.findall(_ID, f"{head} S{own}"))


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Those of a function, and those of its module."""
    of_all = [promise for node in tree.body for promise in _of_module(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = [promise for mark in node.decorator_list for promise in _ids(mark)]
            of_test = of_all if node.name.startswith("test_") else []
            yield from ((promise, node.name) for promise in own + of_test)


def _of_module(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
        marks = node.value.elts if isinstance(node.value, ast.List) else [node.value]
        for mark in marks:
            yield from _ids(mark)


def _ids(mark: ast.expr) -> Iterator[str]:
    if ast.unparse(mark).startswith("pytest.mark.promise("):
        assert isinstance(mark, ast.Call)
        for argument in mark.args:
            assert isinstance(argument, ast.Constant), "promise ids are literals"
            yield str(argument.value)


def main(arguments: Sequence[str]) -> int:
    if arguments:
        return show(arguments)
    held, open_gaps = proofs(), gaps()
    for seed in sorted({promise.seed for promise in PROMISES}):
        ids = [promise.id for promise in PROMISES if promise.seed == seed]
        gap_count = sum(id in open_gaps for id in ids)
        held_count = sum(id in held and id not in open_gaps for id in ids)
        sys.stdout.write(f"{seed}: {len(ids)} promised, {held_count} held, {gap_count} gaps\n")
    for id, reason in GAPS.items():
        sys.stdout.write(f"  gap {id}: {reason}\n")
    missing = [promise.id for promise in PROMISES if promise.id not in held | open_gaps]
    for id in missing:
        sys.stdout.write(f"  neither test nor gap: {id}\n")
    return 1 if missing else 0


def show(wanted: Sequence[str]) -> int:
    """Print promises, by id or family, with their tests. 1: one of them is not listed."""
    unknown = set(wanted) - {name for each in PROMISES for name in (each.id, each.seed)}
    held = proofs()
    for promise in PROMISES:
        if promise.id in wanted or promise.seed in wanted:
            sys.stdout.write(f"{promise.id} {promise.sentence}\n")
            sys.stdout.writelines(f"    {test}\n" for test in sorted(held.get(promise.id, ())))
    for name in sorted(unknown):
        sys.stdout.write(f"{name}: no such promise\n")
    return 1 if unknown else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
