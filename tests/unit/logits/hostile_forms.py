"""Forms that were made to hurt whoever compiles them, each a variant of a kind of harm."""

from __future__ import annotations

from typing import Any

Args = dict[str, Any]


def chain_of_refs(count: int) -> Args:
    names = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(count)}
    return {"$defs": {**names, f"d{count}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def nested(depth: int) -> Args:
    schema: Args = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def chain_of_rules(count: int) -> str:
    rules = [f'r{n} ::= "a" r{n + 1}' for n in range(count)]
    return "\n".join(["root ::= r0", *rules, f'r{count} ::= "b"'])


def objects(count: int) -> list[Args]:
    return [{"type": "object", "properties": {f"k{n}": {"const": n}}} for n in range(count)]


def doubled(keyword: str, levels: int) -> Args:
    """Each level names the next twice."""
    names = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**names, f"d{levels}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def doubled_rules(levels: int) -> str:
    rules = [f"r{n} ::= r{n + 1} r{n + 1}" for n in range(levels)]
    return "\n".join(["root ::= r0", *rules, f'r{levels} ::= "a"'])


ODD_TYPES: dict[str, Args] = {
    "a number among types": {"type": ["string", 5]},
    "no type": {"type": None},
    "an unknown type": {"type": "text"},
    "a list of properties": {"type": "object", "properties": []},
    "an object of values": {"enum": {}},
    "no values": {"enum": []},
    "a text of required names": {"type": "object", "required": "a"},
    "numbers of required names": {"type": "object", "required": [1]},
    "a number for a ref": {"$ref": 5},
    "a number for a pattern": {"type": "string", "pattern": 5},
    "a number for items": {"type": "array", "items": 5},
    "an object of schemas": {"allOf": {}},
    "no schemas": {"anyOf": []},
    "a text for a length": {"type": "string", "minLength": "5"},
    "a length below nothing": {"type": "string", "minLength": -1, "maxLength": -5},
    "a length that is none": {"type": "string", "minLength": 1e308},
    "a length of 65 bits": {"type": "string", "minLength": 2**64},
    "no words at all": {},
    "never": {"not": {}},
}
"""Where a schema must have something else: right or wrong, it costs nobody anything."""
SCHEMAS: dict[str, Args] = {
    **ODD_TYPES,
    "doubles by any of": doubled("anyOf", 24),
    "doubles by all of": doubled("allOf", 24),
    "has two of itself": {
        "$defs": {
            "n": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}},
                "required": ["a", "b"],
            }
        },
        "$ref": "#/$defs/n",
    },
    "itself among additional properties": {
        "type": "object",
        "additionalProperties": {"$ref": "#"},
        "patternProperties": {".*": {"$ref": "#"}},
    },
    "12000 values": {"enum": list(range(12_000))},
    "numbers in a range": {"type": "number", "minimum": -1e308, "maximum": 1e308},
    "numbers in a small range": {
        "type": "number",
        "exclusiveMinimum": 1e-300,
        "exclusiveMaximum": 1.0000000000000002e-300,
    },
    "integers of 64 bits": {"type": "integer", "minimum": -(2**63), "maximum": 2**64},
    "a counted pattern": {"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"},
    "3000 items in order": {"type": "array", "prefixItems": [{"type": "string"}] * 3000},
    "NUL in a value": {"const": "a\0b"},
    "NUL in a pattern": {"type": "string", "pattern": "a\0b"},
    "NUL in a name": {"type": "object", "properties": {"a\0": {}}, "required": ["a\0"]},
    "a long format": {"type": "string", "format": "x" * 10_000},
    "a long description": {"type": "integer", "description": "x" * 200_000},
    "chain of 200 refs": chain_of_refs(200),
    "chain of 1000 refs": chain_of_refs(1000),
    "chain of 4000 refs": chain_of_refs(4000),
    "all of 59 patterns": {
        "type": "string",
        "allOf": [{"pattern": f"^.*a.{{{n}}}b.*$"} for n in range(59)],
    },
    "any of 1000 objects": {"anyOf": objects(1000)},
    "itself": {"$ref": "#"},
    "itself in a union": {
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"items": {"$ref": "#/$defs/a"}}]}},
        "$ref": "#/$defs/a",
    },
    "products of unions": {
        "allOf": [
            {"anyOf": [{"properties": {f"{c}{n}": {"type": "string"}}} for c in "ab"]}
            for n in range(16)
        ]
    },
    "3000 optional properties": {
        "type": "object",
        "properties": {f"p{n}": {"type": "string"} for n in range(3000)},
    },
    "a billion items": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
    "a long string": {"type": "string", "minLength": 10**6, "maxLength": 2 * 10**6},
    "huge integers": {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
    "multiples": {"type": "integer", "multipleOf": 999_999_937},
    "5000 values": {"enum": [f"value {n}" for n in range(5000)]},
    "60 properties by pattern": {
        "patternProperties": {f"^a{n}.*b.{{{n}}}$": {"type": "integer"} for n in range(60)}
    },
    "half a character": {"const": "\ud800"},
    "nowhere": {"$ref": "https://example.com/schema.json"},
    "nested 60 deep": nested(60),
}
REGEXES = {
    "a? 15000 times": "a?" * 15_000,
    "a? 3000 times": "a?" * 3_000,
    "counted": "[a-z]{1,100000}",
    "counted thrice": "(([a-z]{1,1000}){1,1000}){1,1000}",
    "stars of stars": "((a*)*)*",
    "far back": "(.*a.{25}){3}",
    "ahead": "(?=a)b(?!c)",
    "letters": r"\p{L}{1,200}[^\p{Lu}]{1,200}",
    "NUL": "a\0b",
    "500 alternatives of dots": "|".join(".*" + str(n) for n in range(500)),
    "60 groups": "(" * 60 + "a" + ")" * 60,
    "counted beyond 64 bits": "a{99999999999999999999}",
    "counted backwards": "a{2,1}",
    "a class backwards": "[z-a]",
    "an open class": "[",
    "an open group": "(?:",
    "an open escape": "a\\",
    "itself by name": "(?P<a>a)(?P=a)",
    "beyond Unicode": r"\u{110000}",
    "half a character": "\ud800",
    "dots": "." * 60_000,
    "classes": "[^a]{1,3000}" * 20,
    "any length": "(.{0,3000}){0,3000}",
}
GRAMMARS = {
    "blank": " ",
    "no root": 'other ::= "a"',
    "root twice": 'root ::= "a"\nroot ::= "b"',
    "start beside root": 'root ::= "a" start\nstart ::= "b"',
    "800 rules": chain_of_rules(800),
    "3000 rules": chain_of_rules(3000),
    "60 groups": "root ::= " + "(" * 60 + '"a"' + ")" * 60,
    "doubles itself": 'root ::= root root | "a" | ""',
    "no end": 'root ::= "a" root',
    "no word": "root ::= root",
    "counted thrice": 'root ::= ((("a"{1,1000}){1,1000}){1,1000})',
    "counted": 'root ::= ("a" | "b"){1,100000}',
    "an open quote": 'root ::= "a',
    "an open class": "root ::= [a",
    "doubles by rules": doubled_rules(24),
    "counted a million times": 'root ::= "a"{1,1000000}',
    "only a comment": "# root",
    "NUL": 'root ::= "a\0b"',
    "half a character": 'root ::= "\ud800"',
    "beyond Unicode": r'root ::= "\u{FFFFFFFF}"',
    "each other": 'root ::= a\na ::= b | "x"\nb ::= a',
    "a long word": 'root ::= "' + "word " * 10_000 + '"',
    "huge number": 'root ::= "a"{' + "9" * 5000 + "}",
}
FORMS: list[tuple[str, str, Args]] = [
    *(("json_schema", name, {"schema": schema}) for name, schema in SCHEMAS.items()),
    *(("regex", name, {"pattern": pattern}) for name, pattern in REGEXES.items()),
    *(("ebnf", name, {"grammar": grammar}) for name, grammar in GRAMMARS.items()),
    ("choice", "one long text", {"texts": ["words and words " * 2500]}),
    ("choice", "1024 texts", {"texts": [f"choice {n} of many, many" for n in range(1024)]}),
    ("choice", "one letter", {"texts": ["a" * n for n in range(1, 300)]}),
    ("choice", "NUL", {"texts": ["a\0b", "\0"]}),
    ("choice", "half a character", {"texts": ["\ud800"]}),
    ("choice", "the same", {"texts": ["same"] * 1024}),
]


def call(n: int, schema: Args | None = None) -> Args:
    return {"begin": f"<f{n}>", "schema": schema or {"type": "object"}, "end": "</f>"}


def beside(n: int) -> Args:
    """A call of one of the schemas above, with free text before it."""
    return {"calls": [call(0), call(n, list(SCHEMAS.values())[n])], "triggers": ["<f"]}


TAGGED: list[tuple[str, str, Args]] = [
    *(("tagged", f"{name}, in a call", beside(n)) for n, name in enumerate(SCHEMAS)),
    ("tagged", "10000 calls", {"calls": [call(n) for n in range(10_000)]}),
    ("tagged", "1024 calls", {"calls": [call(n) for n in range(1024)], "triggers": ["<f"]}),
    ("tagged", "1024 calls and an answer", {"calls": [call(n) for n in range(1024)], "answer": {}}),
    ("tagged", "the same call 1024 times", {"calls": [call(0)] * 1024, "triggers": ["<f"]}),
    (
        "tagged",
        "64 triggers, each the beginning of the next",
        {
            "calls": [{"begin": "a" * n, "schema": {}} for n in range(1, 65)],
            "triggers": ["a" * n for n in range(64, 0, -1)],
        },
    ),
    (
        "tagged",
        "64 marks",
        {
            "calls": [{"begin": f"{n} <|im_start|>", "schema": {}} for n in range(64)],
            "triggers": [f"{n} <|im" for n in range(64)],
        },
    ),
    ("tagged", "a long trigger", {"calls": [{"begin": "a" * 60_000, "schema": {}}]}),
    (
        "tagged",
        "long texts",
        {
            "calls": [{"begin": "ab" * 20_000, "end": "é" * 5_000, "schema": {}}],
            "triggers": ["ab" * 10_000],
            "before": "aab" * 10_000,
        },
    ),
    ("tagged", "60000 special tokens", {"calls": [{"begin": "<|pad|>" * 20_000, "schema": {}}]}),
    ("tagged", "nothing but schemas", {"calls": [{"schema": {}}] * 100}),
    ("tagged", "numbers in a row", {"calls": [{"schema": {"type": "integer"}}] * 100}),
    ("tagged", "NUL", {"calls": [{"begin": "a\0b", "schema": {}}], "triggers": ["a\0"]}),
    ("tagged", "half a character", {"calls": [{"begin": "\ud800", "schema": {}}]}),
    ("tagged", "ends an answer", {"calls": [{"begin": "<|im_end|>", "schema": {}}]}),
    ("tagged", "a rule of its own", {"calls": [{"begin": '"\nstart: "a', "schema": {}}]}),
    ("tagged", "nested 60 deep", {"calls": [call(0, nested(60))]}),
]
"""By ways that frontends do not have for what clients write."""
