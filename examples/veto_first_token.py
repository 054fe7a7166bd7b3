"""A hook for prefill: it sees the first token before anything is shown, and can end the request.

# the prefill worker's settings
propagate_terminate: true       # else decode goes on, and its own hooks decide
hooks:
  chain:
    - path: examples.veto_first_token:VetoFirstToken
      phases: [prefill]
      config: {token_ids: [151657]}     # the mark that begins a tool call, say
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.hooks.contract import Chunk, Verdict, emit, terminate


class VetoFirstToken:
    """Ends a request whose answer begins with one of these tokens; nothing of it is shown."""

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        self._vetoed = frozenset(token_ids)

    def __call__(self, chunk: Chunk) -> Verdict:
        if chunk.phase == "prefill" and not self._vetoed.isdisjoint(chunk.token_ids_diff):
            return terminate("first_token_vetoed")
        return emit(chunk.text_diff)
