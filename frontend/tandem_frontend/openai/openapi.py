"""The OpenAPI 3.1 description, made from the same types that decode and write bodies."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from tandem.version import tandem_version
from tandem_frontend.openai import answers, requests
from tandem_frontend.openai.decoding import Body
from tandem_frontend.openai.dialects import OPENAI_ERRORS, ErrorShape, spoken
from tandem_frontend.openai.reading import moderations
from tandem_frontend.openai.strangers import VERSION, FieldRules, KnownObject

_REF = "#/components/schemas/{name}"
_JSON = "application/json"
_HTML = "text/html; charset=utf-8"
_EVENT = {
    "type": "object",
    "description": "Each event; before OpenAPI 3.2 the schema of a stream is that of its items.",
    "properties": {"data": {"type": "string", "description": "A chunk as JSON; last, `[DONE]`."}},
    "required": ["data"],
}


class Post(NamedTuple):
    """A path to which bodies are sent."""

    path: str
    summary: str
    requests: Body[Any]
    answer: type[msgspec.Struct]
    errors: ErrorShape = OPENAI_ERRORS


_OWN = (
    Post(
        "/v1/moderations",
        "Judge texts by the deployment's classifiers",
        moderations.BODY,
        answers.ModerationAnswer,
    ),
    Post("/tokenize", "Text or a chat to token ids", requests.TOKENIZE_BODY, answers.Tokens),
    Post("/detokenize", "Token ids to text", requests.DETOKENIZE_BODY, answers.Text),
)
_GETS: tuple[tuple[str, str, Any], ...] = (
    ("/", "All paths; a browser is sent to a page", dict[str, Any]),
    ("/v1/models", "The served model, as a list", answers.ModelList),
    ("/v1/models/{model}", "The served model", answers.ModelCard),
    (
        "/health",
        "Whether a request would be served, or wait (same as /ready)",
        answers.Status,
    ),
    ("/ready", "Whether a request would be served, or wait", answers.Status),
    ("/ready/pair", "Whether a pair takes work now", answers.Status),
    ("/live", "Whether the process runs", answers.Status),
    ("/version", "Tandem's version", answers.Version),
    ("/openapi.json", "This description", dict[str, Any]),
    ("/docs", "The API's description as a page", str),
)

_EXTRA = {"description": "Given to the deployment's classifiers: it names this field."}
_DEFAULT = FieldRules()


@functools.cache
def document(rules: FieldRules) -> bytes:
    """The description of the whole API as JSON, where a deployment decides so of fields."""
    return msgspec.json.encode(describe(rules))


def posts() -> Iterator[Post]:
    for each in spoken():
        yield Post(each.path, each.summary, each.requests, each.answer, each.errors)
        if (counts := each.counting) is not None:
            yield Post(counts.path, counts.summary, counts.requests, counts.answer, each.errors)
    yield from _OWN


def index() -> dict[str, str]:
    sent = {each.path: each.summary for each in posts()}
    return sent | {path: summary for path, summary, _ in _GETS}


@functools.cache
def describe(rules: FieldRules = _DEFAULT) -> dict[str, Any]:
    all_posts = list(posts())
    types = [kind for each in all_posts for kind in (each.requests.kind.struct, each.answer)]
    types += [kind for _, _, kind in _GETS] + [each.errors.schema for each in all_posts]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    for post in all_posts:
        described = components[post.requests.kind.struct.__name__]["properties"]
        described |= dict.fromkeys(sorted(rules.extra), _EXTRA)
        if rules.unknown == "warn":
            for kind in post.requests.kind.walk():
                components[kind.struct.__name__].pop("additionalProperties", None)
    kinds = [kind for post in all_posts for kind in post.requests.kind.walk()]
    for kind in {kind.struct: kind for kind in kinds}.values():
        if kind.left_out:
            name = kind.struct.__name__
            components[name] = {"anyOf": [components[name], _left_out(kind, rules)]}
    schema = dict(zip(map(repr, types), schemas, strict=True))
    error = schema[repr(answers.ErrorBody)]
    paths: dict[str, Any] = {}
    for path, summary, body, answer, errors in all_posts:
        failure = schema[repr(errors.schema)]
        operation = _operation(summary, schema[repr(answer)], failure, secured=True)
        operation["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": schema[repr(body.kind.struct)]}},
        }
        if "stream" in body.kind.fields:
            operation["responses"]["200"]["content"]["text/event-stream"] = {"schema": _EVENT}
        paths[path] = {"post": operation}
    for path, summary, answer in _GETS:
        secured = path.startswith("/v1/")
        operation = _operation(summary, schema[repr(answer)], error, secured=secured)
        if answer is str:
            operation["responses"]["200"]["content"] = {_HTML: {"schema": {"type": "string"}}}
        if path.endswith("{model}"):
            operation["parameters"] = [
                {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
            ]
        paths[path] = {"get": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tandem", "version": tandem_version()},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _left_out(kind: KnownObject, rules: FieldRules) -> dict[str, Any]:
    """The objects that a list of the kind is read without."""
    passes_unknown = kind.types and rules.unknown == "warn"
    names = kind.types - kind.left_out if passes_unknown else kind.left_out
    named = {"type": "string", "pattern": rf"^({'|'.join(sorted(names))})[{VERSION}]*$"}
    return {
        "type": "object",
        "properties": {"type": {"type": "string", "not": named} if passes_unknown else named},
        "required": ["type"],
        "description": "A type that this server does not have: the object is left out.",
    }


def _operation(summary: str, answer: Any, error: Any, *, secured: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "Success", "content": {_JSON: {"schema": answer}}},
            "default": {"description": "Failure", "content": {_JSON: {"schema": error}}},
        },
    }
    if secured:
        operation["security"] = [{"key": []}, {"header": []}, {}]
    return operation
