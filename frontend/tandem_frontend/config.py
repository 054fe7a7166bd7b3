"""The settings of a frontend, and what is refused of them."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tandem.byte_budget import DEFAULT_BYTES
from tandem.component_settings import ComponentSettings, SpecSettings, StorySettings
from tandem.config import setting
from tandem.endings import WithheldReason
from tandem.extra_fields import MAX_BYTES as MAX_EXTRA_FIELDS_BYTES
from tandem.message_limits import MAX_OUTPUTS, MAX_PROMPT_LOGPROBS
from tandem.upstream import names
from tandem.wire.silence import SILENCE_SECONDS
from tandem_frontend import config_checks

_SESSION_HEADERS = (
    *("x-parent-session-id", "x-dynamo-parent-session-id", "x-session-id"),
    *("x-claude-code-session-id", "session-id", "session_id", "thread-id"),
    *("x-dynamo-session-id", "x-session-token", "x-smg-routing-key"),
)


@dataclass(frozen=True, kw_only=True)
class FrontendConfig(ComponentSettings, SpecSettings, StorySettings):
    """The OpenAI-compatible HTTP server of Tandem."""

    listen: str = setting("127.0.0.1:8000", "Address to serve the HTTP API on.")
    metrics_listen: str = setting(
        "127.0.0.1:8001", "Address of /metrics, probes and /debug, plain HTTP; not for clients."
    )
    https_cert: str = setting(
        "",
        "PEM file of the certificate that clients are shown, with its chain; the file is read"
        " again when it changes. Set it with https_key; without both the API is plain HTTP.",
    )
    https_key: str = setting("", "PEM file of the key of https_cert, without a password.")
    router: tuple[str, ...] = setting(
        ("127.0.0.1:7000",),
        "Routers, each host:port, or dns://host:port, where every address of the host is a"
        " router, as of a headless Service. A request goes to the router with the most room.",
    )
    max_routers: int = setting(
        names.MAX_ROUTERS,
        "Most routers to which the frontend keeps a stream at once. Of more routers it takes"
        " some at random.",
        above=0,
    )
    model_path: str = setting(
        "",
        "Folder with the model's tokenizer.json, tokenizer_config.json and config.json. Requests"
        " that name no model are for this one. Empty: models of `models` and `models_folder`"
        " alone are served.",
    )
    served_model_name: str = setting(
        "", "The `model` that requests name; empty: the name of the model's folder."
    )
    model_aliases: tuple[str, ...] = setting(
        (),
        "Further names by which requests may call the served model, for programs with a built-in"
        " name, such as gpt-4o. An answer has the name that its request used.",
    )
    models: dict[str, str] = setting(
        {},
        "Further models: the folder of each model's files, by the name under which workers serve"
        " the model. A model's files are loaded once a router has workers of the model, or a"
        " request names it.",
    )
    models_folder: str = setting(
        "",
        "Folder of further models: each folder in it is a model of that name. The folder is read"
        " again all the time, so that models may be added. Empty: no further models.",
    )
    model_names_file: str = setting(
        "",
        "YAML file of further names: each with the model that the name stands for, or with"
        " several models and the weights by which requests are divided between them. The file is"
        " read again when it changes. Empty: no further names.",
    )
    max_models: int = setting(
        32, "Most models that one frontend knows; further ones are left out.", above=0
    )
    model_unload_seconds: float = setting(
        300.0,
        "Time after which a model of `models` or `models_folder` that no router serves is"
        " unloaded, with its tokenizer. The model is loaded again when a router serves it.",
        at_least=0,
    )
    api_keys: tuple[str, ...] = setting(
        (),
        "Keys that clients may use (`Authorization: Bearer`). Left out: clients need no key."
        " Set, but without a key in it, as from an empty Secret: the process does not start.",
        secret=True,
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Further host names to which a server without api_keys on a loopback address answers,"
        " such as the name of a forwarded port, or `*`. Refusing other names keeps pages of"
        " other sites out. A server with keys or another address answers to any name.",
    )
    operator_paths: tuple[str, ...] = setting(
        (),
        "Which of the paths /metrics and /ping are served at `listen` too, to anyone and without"
        " a key, for a platform that asks there. /metrics tells models, traffic and the names of"
        " keys; /ping tells no more than /ready. Empty: neither path.",
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        "Origins whose pages may call the API from a browser, such as https://app.example; empty:"
        " none.",
    )
    trust_traceparent: bool = setting(
        False,
        "Let a client's traceparent header decide the trace id of its request, and whether the"
        " request is traced. Set it only behind a gateway that makes the header itself. False:"
        " the client's trace is only linked.",
    )
    api_keys_file: str = setting(
        "",
        "File of keys with names and limits, a line each, as `tandem keys new NAME` makes them."
        " The file is read again when it changes. Its keys count beside `api_keys`. Empty: no"
        " file.",
    )
    key_limit_shares: int = setting(
        1,
        "Number of frontends that share the limits of keys: each frontend allows an equal"
        " part of every limit.",
        above=0,
    )
    key_series: int = setting(
        100,
        "Most keys that have metrics of their own; requests of further keys are counted as"
        " `_other`.",
        at_least=0,
    )
    share_prefix_cache: bool = setting(
        False,
        "Let requests of one key use prefixes that another key's requests have cached. Times to"
        " first token then tell one client of another's prompts; answers no longer say how many"
        " tokens were cached.",
    )
    request_timeout_seconds: float = setting(
        600.0,
        "Deadline of a request that names none, and the longest deadline that a request may name.",
        above=0,
    )
    receive_timeout_seconds: float = setting(
        30.0, "Time a client has to send a request's head, and again to send its body.", above=0
    )
    client_stall_seconds: float = setting(
        30.0,
        "Time for which a client may leave its full socket unread before its connection is closed.",
        above=0,
    )
    keep_alive_seconds: int = setting(
        75,
        "Time for which an idle connection is kept open. Set it longer than a load balancer in"
        " front keeps its own.",
        above=0,
    )
    sse_keep_alive_seconds: float = setting(
        15.0,
        "Silence in a stream after which the frontend sends a comment, which clients ignore, so"
        " that no proxy takes the stream for dead. Set it well below the proxies' timeouts. 0:"
        " never; else at least 0.01.",
        at_least=0,
    )
    max_body_bytes: int = setting(16 * 1024 * 1024, "Largest request body.", above=0)
    max_header_bytes: int = setting(
        32 * 1024, "Largest request line and headers together.", above=0
    )
    max_open_requests: int = setting(
        4096,
        "Requests at once, from before their body is read to the end of their answer; one more is"
        " refused with queue_full (429).",
        above=0,
    )
    max_held_bytes: int = setting(
        DEFAULT_BYTES,
        "Memory held for all clients together: bodies and prompts, collected answers, and output"
        " that waits for slow clients. A request that would take more than three quarters is"
        " refused with queue_full (429); where output finds no room, the request that holds most"
        " of it is ended. Set it well below the memory limit of the process.",
        above=0,
    )
    read_seconds: float = setting(
        20.0,
        "CPU time that a body larger than 16 KiB may take to be decoded, checked and tokenised in"
        " a process of its own; by the clock, ten times as much. A body that takes more is refused"
        " (413), and so is one that waits three times as long for a process (429).",
        above=0,
    )
    read_memory_mb: int = setting(
        512,
        "Memory that reading one body above 16 KiB may take, MiB; one that takes more is refused.",
        above=0,
    )
    read_processes: int = setting(
        2,
        "Most processes that read bodies from 16 to 256 KiB, and most that read larger ones."
        " Set it to the frontend's cores; each process takes the memory of a tokenizer. For each,"
        " 64 bodies may wait; one more is refused (429).",
        above=0,
        at_most=64,
    )
    prefix_store_mb: int = setting(
        128,
        "Memory for the tokens of earlier prompts, MiB, so that the next turn of a conversation"
        " is tokenised from where it goes on. 0: each prompt is tokenised as a whole.",
        at_least=0,
    )
    max_connections: int = setting(
        8192,
        "Most connections of clients at once; one more is answered too_many_connections (503)"
        " and closed. The limit is lower where the process may not open so many files.",
        above=0,
    )
    router_wait_seconds: float = setting(
        10.0,
        "Time for which a request waits, within its deadline, while no router takes it, as while"
        " a router is replaced or has only just started. Then the request is refused (503):"
        " router_lost, or no_pair where its router has no pair. 0: it is refused at once. Where"
        " a router expects a first pair, the wait is at least that router's pair_wait_seconds.",
        at_least=0,
    )
    router_silence_seconds: float = setting(
        SILENCE_SECONDS,
        "Silence after which the stream to a router is given up: its open requests end"
        " (router_lost), and a new stream is opened. A router sends something each second.",
        above=0,
    )
    max_n: int = setting(128, "Largest `n` of a request.", above=0, at_most=MAX_OUTPUTS)
    max_choices: int = setting(
        256,
        "Most choices of one request (its prompts times its `n`), and most texts of one"
        " moderation.",
        above=0,
    )
    max_prompt_logprobs: int = setting(
        256 * 1024,
        "Most log-probabilities of prompts in one answer: the prompts' tokens, times one more"
        " than the alternatives, for each choice. A request for more is refused.",
        above=0,
        at_most=MAX_PROMPT_LOGPROBS,
    )
    max_tools: int = setting(128, "Most tools that one request may declare.", above=0)
    max_calls: int = setting(
        128, "Most calls of tools in one message that a request sends back.", above=0
    )
    max_call_characters: int = setting(
        256 * 1024,
        "Most characters of an answer that are held back until it is clear whether they are a"
        " call of a tool: the beginning of a call, and all of a call that is not written as"
        " JSON. A longer call is shown as text. The limit bounds memory, and how long a"
        " conversion keeps other requests waiting.",
        above=0,
    )
    max_request_bytes: int = setting(
        64 * 1024 * 1024,
        "Most bytes that one request sends to the router: the rest of the request travels with"
        " each of its prompts, and counts with each. A larger request is refused (413).",
        above=0,
    )
    max_backlog_bytes: int = setting(
        1024 * 1024,
        "Output kept for one client that reads too slowly, beside 64 KiB in the process and 64 KiB"
        " in its socket; past it the request is cancelled, so that a slow client never slows"
        " others.",
        above=0,
    )
    slo_ttft_seconds: float = setting(
        2.0,
        "Objective for the time to first token: metrics count each request as met or missed.",
        above=0,
    )
    slo_itl_seconds: float = setting(
        0.1,
        "Objective for a request's mean time between tokens: metrics count each request as"
        " met or missed.",
        above=0,
    )
    gen_ai_metrics: bool = setting(
        False, "Also count requests under OpenTelemetry's names: see docs/monitoring.md."
    )
    playground: bool = setting(
        False, "Serve /playground: a page that chats with this server from a browser."
    )
    allow_reports: bool = setting(
        False, 'Let clients ask for `tandem: {"report": true}`: workers, request ids, KV figures.'
    )
    prices: dict[str, Any] = setting(
        {},
        "What a model's workers cost, by the model's name, or `*` for all others:"
        ' {"*": {"prefill_second": 0.0008, "decode_slot_second": 0.00002, "kv_token_second":'
        " 1e-9}}. The `usage` of answers then says what they cost. Empty: answers say nothing.",
    )
    allow_external_scores: bool = setting(
        False,
        'Let clients ask for `tandem: {"external_scores": true}`: the scores that'
        " classifiers answered.",
    )
    priority_order: Literal["higher-first", "lower-first"] = setting(
        "higher-first",
        "Which `priority` of a request is admitted first while requests queue: a higher one, or a"
        " lower one, as in vLLM. With `lower-first` the field's sign is turned round as the request"
        " is read: the limits of keys, tiers and metrics count higher as first all the same.",
    )
    allow_kv_hints: bool = setting(
        False,
        "Pass `kv_hints` of requests on to engines that take hints. Hints may pin or push out"
        " what an engine has cached for others: only for deployments where all who send requests"
        " are trusted.",
    )
    unknown_fields: Literal["refuse", "warn"] = setting(
        "warn",
        "How a request with unknown fields is treated: `refuse` the request, or `warn`, which"
        " ignores the fields and names them in the answer's `x-tandem-ignored-fields`. Fields"
        " that would change the answer, and misspelled known fields, are refused either way.",
    )
    extra_fields: tuple[str, ...] = setting(
        (),
        "Names of fields that OpenAI's API does not have and that classifiers are given as"
        " extra_fields, whatever their values. `unknown_fields` is for all other unknown fields.",
    )
    max_extra_fields_bytes: int = setting(
        16_384,
        "Most bytes of JSON that one request's extra_fields may take together.",
        above=0,
        at_most=MAX_EXTRA_FIELDS_BYTES,
    )
    moderation_classifiers: dict[str, Any] = setting(
        {},
        "Classifiers that judge the texts of /v1/moderations, written as workers' `classifiers`"
        " (docs/hooks/classifiers.md). The classifiers run in a process beside the frontend."
        " Empty: no moderations.",
    )
    max_moderation_bytes: int = setting(
        1024 * 1024,
        "Largest body of a moderation. The number of its texts is limited by `max_choices`.",
        above=0,
    )
    session_headers: tuple[str, ...] = setting(
        _SESSION_HEADERS,
        "Headers that name a request's session; the first one that a request has counts."
        " Requests of a session go where their prefix is cached. Without such a header the"
        " session is named by the body's `nvext.session_control`, `prompt_cache_key`, `user` or"
        " `metadata.user_id`. A header with `parent` in its name holds the session to which the"
        " request's own belongs.",
    )
    session_end_headers: tuple[str, ...] = setting(
        ("x-dynamo-session-final",),
        "Headers whose value `true` says that a request is the last of its session: routers then"
        " drop what they keep for the session's next request.",
    )
    volatile_preambles: tuple[str, ...] = setting(
        ("x-anthropic-billing-header:",),
        "Beginnings of lines that clients put before their instructions and that change from"
        " session to session. The prompt leaves such a line out, so that prefixes are cached.",
    )
    model_family: str = setting(
        "auto",
        "Family in whose format the model writes reasoning and calls of tools (docs/tools.md"
        " lists families). `auto`: the family that the model's files show; `none`: answers are"
        " text alone.",
    )
    model_families: dict[str, str] = setting(
        {},
        "Family of each model of `models` and `models_folder`, by name; of others: `auto`.",
    )
    withheld_finish_reason: WithheldReason = setting(
        "stop",
        "The finish_reason of a chat's or completion's answer that an output hook or a"
        " classifier ended; the stop_reason says which of them. With either value, responses are"
        " then incomplete, and messages are refusals.",
    )
    resume: bool = setting(
        False,
        "Whether another pair of workers goes on with a request whose decode worker was lost,"
        " unless the request says otherwise. Each token of such a request costs its worker and"
        " router more.",
    )
    client_logits_processors: tuple[str, ...] = setting(
        (), "Names of logits processors that clients may use; the workers must know them too."
    )
    drain_seconds: float = setting(
        30.0,
        "After SIGTERM, time that open requests have to finish; then they end with an error.",
        at_least=0,
    )

    def __post_init__(self) -> None:
        """Raises ConfigError for a value that can never serve."""
        super().__post_init__()
        config_checks.check(self)

    def of_model(self, name: str, folder: Path) -> FrontendConfig:
        """The settings of a frontend that serves this model alone."""
        family = self.model_families.get(name, "auto")
        return dataclasses.replace(
            self,
            model_path=str(folder),
            served_model_name=name,
            model_aliases=(),
            models={},
            models_folder="",
            model_names_file="",
            model_family=self.model_family if name == self.model_name else family,
        )

    @functools.cached_property
    def model_name(self) -> str:
        """Name of the model of `model_path`, for workers and routers too; empty: no such model."""
        if not self.model_path:
            return ""
        return self.served_model_name or Path(self.model_path).resolve().name
