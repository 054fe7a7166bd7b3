"""Bytes of a body to a request, or to an error that names the field at fault."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from tandem.errors import InvalidRequestError, RequestError, UnsupportedError

T = TypeVar("T")

_NO_TOOLS = "tools and function calls are not offered"
_NO_OTHER_MODALITIES = "only text is offered"
_NO_STORE = "nothing is stored here"
UNSUPPORTED: dict[str, str] = {
    "tools": _NO_TOOLS,
    "tool_choice": _NO_TOOLS,
    "parallel_tool_calls": _NO_TOOLS,
    "functions": _NO_TOOLS,
    "function_call": _NO_TOOLS,
    "tool_calls": _NO_TOOLS,
    "tool_call_id": _NO_TOOLS,
    "web_search_options": _NO_TOOLS,
    "modalities": _NO_OTHER_MODALITIES,
    "audio": _NO_OTHER_MODALITIES,
    "image_url": _NO_OTHER_MODALITIES,
    "input_audio": _NO_OTHER_MODALITIES,
    "file": _NO_OTHER_MODALITIES,
    "store": _NO_STORE,
    "prompt_cache_key": "prefix caching needs no key here",
    "prediction": "predicted outputs are not offered",
    "reasoning_effort": "there is no reasoning parser",
    "verbosity": "there is no such setting",
    "service_tier": "there are no tiers; see `priority`",
    "safety_identifier": "it would be ignored; see `user`",
    "best_of": "choices are not ranked; see `n`",
    "suffix": "insertion is not offered",
    "min_tokens": "it is not offered; see `ignore_eos`",
    "use_beam_search": "beam search is not offered",
}
"""Fields of OpenAI's and of like servers' APIs that are refused by name, with the reason."""

_AT_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"^Object (?:contains unknown|missing required) field `(?P<name>[^`]*)`$")
_LONGEST_PARAM = 100


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The body as its request. Raises InvalidRequestError or UnsupportedError with `param`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}") from None
    except UnicodeDecodeError:
        raise InvalidRequestError("The body is not valid UTF-8") from None
    except RecursionError:
        raise InvalidRequestError("The body is nested too deeply") from None


def _explain(message: str) -> RequestError:
    match = _AT_PATH.match(message)
    what, path = (match["what"], match["path"] or "") if match else (message, "")
    field = _FIELD.match(what)
    if field is None:
        param = path[:_LONGEST_PARAM]
        return InvalidRequestError(f"{what}: `{param}`" if param else what, param=param)
    name = field["name"][:_LONGEST_PARAM]
    param = f"{path}.{name}" if path else name
    if "unknown" not in what:
        return InvalidRequestError(f"`{param}` is required", param=param)
    if reason := UNSUPPORTED.get(name):
        return UnsupportedError(f"`{param}` is not supported: {reason}", param=param)
    return InvalidRequestError(f"Unknown field `{param}`", param=param)
