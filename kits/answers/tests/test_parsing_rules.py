"""What holds for every family, whatever the text and the pieces it comes in."""

from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_case import one_case
from parsed_answers import MOST_HELD, check_cuts, parsed, parser, plain
from recorded_answers import ONE, PLAN, RECORDED
from spoilt_answers import CONVERTED, check, spoilt

from tandem_answers.parsing.families import FAMILIES
from tandem_answers.parsing.formats import Xml
from tandem_answers.parsing.unquoted import DEEPEST
from tandem_answers.parsing.values import LITERAL_LIMIT, keyword_arguments, typed
from tandem_frontend.openai.answer_parsers import CallArguments, CallStart, Content, Reasoning

FAMILY_NAMES = st.sampled_from(sorted(FAMILIES))


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, str]:
    """A family, and a text that has some of its markers and the like in it."""
    family = draw(FAMILY_NAMES)
    words = [
        *FAMILIES[family].markers,
        *FAMILIES[family].silent,
        *RECORDED.get(family, ("",))[:4],
        '{"name": "now", "arguments": {}}',
        "now",
        "now()",
        "get_weather",
        *'{}[]()<>":,\\;=\n ',
    ]
    pieces = draw(st.lists(st.one_of(st.sampled_from(words), st.text(max_size=3)), max_size=12))
    return family, "".join(pieces)


@pytest.mark.promise("S6-242")
@given(texts(), st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_no_text_raises_and_no_pieces_change_the_parts(
    given_: tuple[str, str], rng: random.Random
) -> None:
    check(*given_, rng)


@pytest.mark.promise("S6-242")
@one_case("family", RECORDED)
def test_spoilt_answers_keep_the_rules(family: str) -> None:
    rng = random.Random(1)
    for text in spoilt(family, seed=1, count=100):
        check(family, text, rng)


@pytest.mark.promise("S6-242")
@one_case("family", RECORDED)
def test_what_no_syntax_has_is_given_out_once_and_in_order(family: str) -> None:
    """Characters that are in no marker and no syntax, wherever they come, are in no part lost."""
    rng = random.Random(2)
    begin, end = RECORDED[family].opens
    for _ in range(200):
        text = f"a {begin}b{end} c {rng.choice(RECORDED[family][:4])} d"
        # A call's id is not given out where it is a strange one.
        text = text.replace('"tool_call_id": "0", ', "").replace('"tool_call_id": "1", ', "")
        text = text.replace("[CALL_ID]a1b2c3d4e", "")
        strange = [chr(0xE000 + number) for number in range(rng.randint(1, 3))]
        places = sorted(rng.sample(range(len(text)), len(strange)), reverse=True)
        for char, at in zip(reversed(strange), places, strict=True):
            text = text[:at] + char + text[at:]
        parts = parsed(parser(family), [text])
        said = "".join(part.text for part in parts if not isinstance(part, CallStart))
        assert [char for char in said if char >= "\ue000" and char < "\uf8ff"] == strange


@pytest.mark.promise("S6-243")
@one_case("family", sorted(RECORDED.keys() - CONVERTED))
def test_an_answer_cut_inside_arguments_keeps_what_came_of_them(family: str) -> None:
    text = RECORDED[family].nested
    whole = json.dumps(PLAN, ensure_ascii=False)
    begin = text.index(whole)
    for at in range(begin + 1, begin + len(whole)):
        one = parser(family)
        parts = parsed(one, [text[:at]])
        [call, arguments] = parts
        assert isinstance(call, CallStart)
        assert arguments == CallArguments(0, text[begin:at])
        assert one.broken == 0


@one_case("family", sorted(RECORDED.keys() - CONVERTED))
def test_an_answer_cut_behind_the_arguments_has_its_call(family: str) -> None:
    text = RECORDED[family].one
    for at in range(text.index("}") + 1, len(text) + 1):
        one = parser(family)
        call, *rest = plain(parsed(one, [text[:at]]))
        assert [call] == ONE
        sections = (*FAMILIES[family].sections, "")
        assert any(section.startswith("".join(rest)) for section in sections)
        assert one.broken == 0


@pytest.mark.promise("S6-243")
@one_case("family", RECORDED)
def test_an_answer_cut_in_a_head_is_text(family: str) -> None:
    text = RECORDED[family].one
    one = parser(family)
    cut = text[: text.index("get_weather") + 5]
    said = "".join(map(str, plain(parsed(one, [cut]))))
    assert said
    assert cut.endswith(said)
    assert one.calls == 0


@pytest.mark.promise("S6-243")
def test_a_fault_in_arguments_ends_them_and_is_content() -> None:
    one = parser("hermes")
    text = '<tool_call>{"name": "now", "arguments": {"a": [1, }}</tool_call> So.'
    assert parsed(one, [text]) == [
        CallStart(0, "now"),
        CallArguments(0, '{"a": [1, '),
        Content("}}</tool_call> So."),
    ]
    assert (one.calls, one.broken) == (1, 1)


BAD_STRINGS = {
    "an escape of the shell": (r"rm -rf /data/\$USER/cache", r"rm -rf /data/\$USER/cache"),
    "an escape of Python": (r"it\'s \x41 \d", r"it\'s \x41 \d"),
    "half an escape": (r"\u12 \u12g4 \\ \" \u00e9 \n", '\\u12 \\u12g4 \\ " é \n'),
    "raw control characters": ("a\nb\tc\r\x01\\\n", "a\nb\tc\r\x01\\\n"),
}
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "now", "arguments": {"a": "%s"}}\n</tool_call>',
    "qwen3": '<tool_call>\n{"arguments": {"a": "%s"}, "name": "now"}\n</tool_call>',
    "mistral_args": '[TOOL_CALLS]now[ARGS]{"a": "%s"}',
    "kimi_k2": "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>"
    '{"a": "%s"}<|tool_call_end|>',
    "llama3_json": '{"name": "now", "parameters": {"a": "%s"}}',
}


@one_case("bad", BAD_STRINGS)
@one_case("family", WRITTEN)
def test_a_string_that_is_badly_escaped_is_given_out_as_json(family: str, bad: str) -> None:
    written, said = BAD_STRINGS[bad]
    check_cuts(family, WRITTEN[family].replace("%s", written), [("now", {"a": said})])


VALUES = [name for name in RECORDED if isinstance(FAMILIES[name].calls[0], Xml)]


@one_case("ending", ["the last has its end", "none has its end"])
@one_case("family", VALUES)
def test_a_value_without_its_end_ends_where_the_next_or_the_call_s_end_begins(
    family: str, ending: str
) -> None:
    xml = FAMILIES[family].calls[0]
    assert isinstance(xml, Xml)
    values = "".join(
        f"{xml.key}{key}{xml.key_end}{xml.value}\n{value}\n{end}"
        for key, value, end in (("path", "a.txt", ""), ("text", "hello", xml.value_end))
    )
    text = f"{xml.inside}{xml.begin}now{xml.name_end}{values}{xml.end}"
    if ending == "none has its end":
        text = text.replace(xml.value_end, "")
    read = [(xml.padded and each) or f"\n{each}\n" for each in ("a.txt", "hello")]
    expected = ("now", dict(zip(("path", "text"), read, strict=True)))
    for at in range(len(text)):
        assert plain(parsed(parser(family), [text[:at], text[at:]])) == [expected]


def test_arguments_in_a_string_are_mended_too() -> None:
    arguments = json.dumps('{"a": "/\\$USER\n"}')
    text = f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>'
    check_cuts("hermes", text, [("now", {"a": "/\\$USER\n"})])


@pytest.mark.parametrize("end", ["}}</tool_call>", ""])
def test_a_call_whose_arguments_are_not_whole_is_cut(end: str) -> None:
    one = parser("hermes")
    parsed(one, ['<tool_call>{"name": "now", "arguments": {"a": [1, ' + end])
    assert (one.calls, one.cut) == (1, frozenset({0}))


def test_a_fault_in_a_head_makes_all_of_it_content() -> None:
    one = parser("hermes")
    text = '<tool_call>\n{"name": 5, "arguments": {}}</tool_call>'
    assert parsed(one, [text]) == [Content(text)]
    assert (one.calls, one.broken) == (0, 1)


def test_a_fault_behind_arguments_is_content() -> None:
    one = parser("hermes")
    text = '<tool_call>{"name": "now", "arguments": {}} and so on'
    assert parsed(one, [text]) == [
        CallStart(0, "now"),
        CallArguments(0, "{}"),
        Content("} and so on"),
    ]
    assert one.broken == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[now(a=1]", ["[now(a=1]"]),
        ("[now(a=[1)]", ["[now(a=[1)]"]),
        ("[now(a=1}, now()]", ["[now(a=1}, now()]"]),
        ("[now(a=1) x]", [("now", {"a": 1}), " x]"]),
    ],
)
def test_brackets_of_python_have_to_match(text: str, said: list[object]) -> None:
    one = parser("pythonic")
    assert plain(parsed(one, [text])) == said
    assert one.broken == 1


def test_the_calls_of_a_list_before_a_faulty_one_stay() -> None:
    one = parser("mistral")
    text = '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "nope"}] x'
    assert parsed(one, [text]) == [
        CallStart(0, "now"),
        CallArguments(0, "{}"),
        Content(', {"name": "nope"}] x'),
    ]
    assert (one.calls, one.broken) == (1, 1)


def test_a_call_without_arguments_but_with_an_unknown_key_is_text() -> None:
    text = '<tool_call>{"name": "get_weather", "args": {"city": "Paris"}}</tool_call>'
    assert parsed(parser("hermes"), [text]) == [Content(text)]


def test_two_arguments_of_one_call_are_a_fault() -> None:
    text = '<tool_call>{"arguments": {}, "parameters": {}, "name": "now"}</tool_call>'
    assert parsed(parser("hermes"), [text]) == [Content(text)]


def test_arguments_that_are_no_object_are_a_fault() -> None:
    for arguments in ("[1]", "5", '"x"', '"[]"', "true"):
        text = f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>'
        assert parsed(parser("hermes"), [text]) == [Content(text)]


@pytest.mark.promise("S6-244")
@one_case("most", [100, MOST_HELD])
@one_case("more", [-1, 0, 1])
@one_case(
    ("family", "begin"),
    [
        ("hermes", '<tool_call>{"a": "'),
        ("hermes", "<tool_call>"),
        ("mistral", "[TOOL_CALLS]"),
        ("glm45", "<tool_call>now<arg_key>"),
        ("pythonic", "[now(a='"),
        ("hermes", ""),
    ],
)
def test_no_more_is_held_than_may_be(family: str, begin: str, most: int, more: int) -> None:
    size = most + more
    filler = " " if begin in ("", "<tool_call>") else "x"
    text = begin + filler * (size - len(begin))
    whole, many = (parser(family, most_held=most) for _ in range(2))
    held = whole.push(text)
    in_pieces = [part for at in range(0, size, 97) for part in many.push(text[at : at + 97])]
    assert bool(held) == (more > 0)
    for parts, one in ((held, whole), (in_pieces, many)):
        said = "".join(part.text for part in parts if isinstance(part, Content))
        assert said + "".join(map(str, plain(parsed(one, ["!"])))) == text + "!"


M3 = ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="now">'
K3 = '<|open|>call tool="now" index="1"<|sep|>'


@pytest.mark.promise("S6-244")
@pytest.mark.parametrize(("most", "calls"), [(DEEPEST, 1), (DEEPEST + 1, 0)])
@pytest.mark.parametrize("family", ["gemma4", "minimax_m3"])
def test_values_are_in_each_other_only_so_deep(family: str, most: int, calls: int) -> None:
    mark = "]<]minimax[>["
    texts = {
        "gemma4": "<|tool_call>call:now" + "{a:" * most + "1" + "}" * most + "<tool_call|>",
        "minimax_m3": M3 + f"{mark}<a>" * most + "1" + f"{mark}</a>" * most + f"{mark}</invoke>",
    }
    one = parser(family)
    parsed(one, [texts[family]])
    assert one.calls == calls


@pytest.mark.promise("S6-244")
@one_case(
    ("family", "text"),
    [
        ("hermes", '<tool_call>{"name": "now", "arguments": ' + '{"a":' * 40_000),
        ("hermes", "<tool_call>" * 20_000),
        ("hermes", " " * 200_000),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": ' + "9" * 200_000),
        ("hermes", '<tool_call>{"arguments": "' + "[" * 200_000 + '", "name": "now"}</tool_call>'),
        ("mistral", "[TOOL_CALLS] " * 15_000),
        ("mistral", "[TOOL_CALLS" * 15_000),
        ("pythonic", "[" * 100_000),
        ("pythonic", "[now(a=" + "[" * 200_000),
        ("pythonic", "[now(a=" + "-" * 10_000 + "1)]"),
        ("pythonic", "[now(a=" + "[" * 8_000 + "]" * 8_000 + ")]"),
        ("pythonic", "[now(" + "a=1," * 4_000 + ")]"),
        ("glm45", "<tool_call>now" + "<arg_key>a</arg_key><arg_value>1</arg_value>" * 5_000),
        ("glm45", "<tool_call>now<arg_key>a</arg_key><arg_value>" + "[" * 200_000 + "</arg_value>"),
        ("glm45", "<tool_call>now<arg_key>a</arg_key><arg_value>['" + "a" * 200_000
         + "</arg_value></tool_call>"),
        ("glm45", "<tool_call>now<arg_key>a</arg_key><arg_value>['" + "\\'" * 100_000
         + "</arg_value></tool_call>"),
        ("glm45", "<tool_call>now<arg_key>a</arg_key><arg_value>[" + "\"'" * 100_000
         + "</arg_value></tool_call>"),
        ("glm45", "<tool_call>now<arg_key>a</arg_key><arg_value></tool_call>" * 4_000),
        ("gemma4", "<|tool_call>call:now{a:" + "[" * 60_000),
        ("gemma4", "<|tool_call>call:now{" + "a:1," * 6_000 + "}<tool_call|>"),
        ("minimax_m3", M3 + "<a>" * 20_000),
        ("minimax_m3", M3 + "]<]minimax[>[<a>" * 4_000),
        ("minimax_m3", M3 + "]<]minimax[>[<a>1]<]minimax[>[</a>" * 2_000),
        ("kimi_k3", K3 + '<|open|>argument key="a"<|sep|>' * 8_000),
        ("kimi_k3", K3 + 'a="' * 20_000),
        ("gpt_oss", "<|start|>" * 20_000),
        ("qwen3", "<think>" * 20_000),
        ("qwen3", "<think>" + '<tool_call>{"name": "now", "arguments": {}}</tool_call>' * 4_000),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_hostile_answers_take_time_in_proportion_to_their_length(family: str, text: str) -> None:
    """What grew with the square of their lengths would take minutes."""
    one = parser(family)
    began = time.process_time()
    parsed(one, [text[at : at + 4] for at in range(0, len(text), 4)])
    parsed(parser(family), [text])
    assert time.process_time() - began < 30


def test_one_token_never_keeps_the_loop_for_long() -> None:
    """A call in Python is converted in one go, so what it may have is bounded."""
    fits = "a=[" + "1," * (LITERAL_LIMIT // 2 - 3) + "]"
    assert json.loads(keyword_arguments(fits))
    with pytest.raises(ValueError, match=r"^$"):
        keyword_arguments(fits.replace("]", "1, 2]"))
    assert keyword_arguments(f"a='{'x' * 2 * LITERAL_LIMIT}'")


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", {}),
        ("a=1, b='x', c=None, d=True, e=-1.5", {"a": 1, "b": "x", "c": None, "d": True, "e": -1.5}),
        ("a=[(1, 2), {'k': [] }]", {"a": [[1, 2], {"k": []}]}),
        (r"a='\d+ \'q\' \\ \n \u00e9'", {"a": "\\d+ 'q' \\ \n é"}),
        ("a='line\nline'", {"a": "line\nline"}),
        ("a='\\ud800'", {"a": "\ud800"}),
        ("a='(', b=\"'\"", {"a": "(", "b": "'"}),
        (
            "a=true, b=null, c=[false], d={'x': true}",
            {"a": True, "b": None, "c": [False], "d": {"x": True}},
        ),
    ],
)
def test_keywords_of_python_become_json(text: str, arguments: object) -> None:
    written = keyword_arguments(text)
    assert json.loads(written) == arguments
    assert written.encode()


@one_case(
    "text",
    ["1", "a=b", "*a", "**a", "a=1e999", "a={1, 2}", "a=b'x'", "a=f('x')", "a=1+1", "a=", "a='",
     "a=1)(b=2", "a=__import__('os')", "a={(1,): 2}", "a=" + "9" * 5000, "\0"],
)  # fmt: skip
def test_what_is_no_literal_of_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - it has no text: nobody sees it
        keyword_arguments(text)


@one_case(
    ("text", "types", "value"),
    [
        ("5", {"string"}, "5"),
        ("5", {"integer"}, 5),
        ("5.0", {"integer"}, 5.0),
        ("5.5", {"integer"}, "5.5"),
        ("5", {"number"}, 5),
        ("true", {"boolean"}, True),
        ("True", {"boolean"}, True),
        ("None", {"null", "string"}, None),
        ("null", set(), None),
        (" [1] ", {"array"}, [1]),
        ("[1", {"array"}, "[1"),
        ("{}", {"array"}, "{}"),
        ('"x"', set(), '"x"'),
        ('"x"', {"object"}, '"x"'),
        ("NaN", set(), "NaN"),
        ("x\ny", set(), "x\ny"),
        ("9" * 5000, {"integer"}, "9" * 5000),
        ("1_000", {"integer"}, 1000),
        ("1_000", {"integer", "string"}, "1_000"),
        ("1_000", set(), "1_000"),
        ("[" * 100_000, set(), "[" * 100_000),
    ],
)
def test_a_value_without_a_type_has_that_of_the_schema(
    text: str, types: set[str], value: object
) -> None:
    read = json.loads(typed(text, frozenset(types)))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("family", ["hermes", "pythonic", "glm45"])
def test_schemas_of_any_shape_do_no_harm(family: str) -> None:
    """What a client may send as parameters."""
    for schema in (
        {"properties": 5},
        {"properties": {"city": 5}},
        {"properties": {"city": {"type": 5, "enum": 5, "anyOf": 5}}},
        {"properties": {"city": {"type": [{}], "enum": [[], {}], "anyOf": [5, {"type": {}}]}}},
    ):
        one = parser(family, tools={"get_weather": schema})
        assert plain(parsed(one, [RECORDED[family].one])) == ONE


def test_content_comes_with_the_piece_that_it_is_in() -> None:
    one = parser("qwen3")
    for piece in ("Hello", " world", " a < b", " 1 [2] {3}"):
        assert one.push(piece) == [Content(piece)]
    assert one.push(" <") == [Content(" ")]
    assert one.push("b>") == [Content("<b>")]


def test_what_may_become_a_marker_is_held_and_no_more() -> None:
    one = parser("qwen3", opened=True)
    assert one.push("so </thi") == [Reasoning("so ")]
    assert one.push("s") == [Reasoning("</this")]
    assert one.push("</think") == []
    assert one.flush() == [Reasoning("</think")]


def test_parts_of_a_piece_are_joined() -> None:
    parts = parser("pythonic").push("a[1], b[2], c[3] and d")
    assert parts == [Content("a[1], b[2], c[3] and d")]
