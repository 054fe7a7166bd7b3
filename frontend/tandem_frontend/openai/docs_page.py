"""`/docs`: the API's description as one plain page that loads nothing from elsewhere."""

from __future__ import annotations

import functools
from html import escape
from typing import Any

from tandem_frontend.openai import openapi
from tandem_frontend.openai.strangers import FieldRules

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font:14px ui-monospace,monospace}table{border-collapse:collapse;width:100%}"
    "td,th{border-bottom:1px solid #ccc;padding:.2rem .6rem;text-align:left;vertical-align:top}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}a{color:#8af}}"
)


@functools.cache
def page(rules: FieldRules) -> bytes:
    """The page as UTF-8 HTML, where a deployment decides so of fields."""
    description = openapi.describe(rules)
    info = description["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>{info['title']} API</title><style>{_STYLE}</style>",
        f"<h1>{info['title']} {escape(info['version'])}</h1>",
        "<p>The whole description: <a href=/openapi.json>/openapi.json</a></p>",
    ]
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation['summary'])}</p>")
            if body := operation.get("requestBody"):
                schema = body["content"]["application/json"]["schema"]
                parts.append(f"<p>Body: {_kind(schema)}</p>")
    parts.append("<h1>Types</h1>")
    parts += [_type(name, s) for name, s in description["components"]["schemas"].items()]
    return "".join(parts).encode()


def _type(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{'' if field not in required else ' *'}"
        f"<td>{_kind(kind)}"
        for field, kind in schema.get("properties", {}).items()
    )
    text = escape(schema.get("description", ""))
    return f"<h2 id={name}>{name}</h2><p>{text}</p><table><tr><th>Field<th>Type{rows}</table>"


def _kind(schema: dict[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"<a href=#{name}>{name}</a>"
    if options := schema.get("anyOf"):
        return " or ".join(_kind(option) for option in options)
    if values := schema.get("enum"):
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in values)
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    bounds = [
        f"{word} {schema[key]}"
        for key, word in (
            ("minimum", "≥"),
            ("exclusiveMinimum", "&gt;"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "&lt;"),
        )
        if key in schema
    ]
    return " ".join([escape(schema.get("type", "any")), *bounds])
