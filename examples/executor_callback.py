"""A logits callback of your own, over the workers of two hosts, named by a request:

    # on each host, with its own addresses; PYTHONPATH has the folder of this file
    tandem-prefill-worker --listen 10.0.0.1:7001 --model-path MODEL --logits-processors one_in=…
    tandem-decode-worker --listen 10.0.0.1:7002 --model-path MODEL --logits-processors one_in=…

    # anywhere
    tandem-router --listen 10.0.0.9:7000 --client-logits-processors one_in \\
        --prefill 10.0.0.1:7001,10.0.0.2:7001 --decode 10.0.0.1:7002,10.0.0.2:7002
    python examples/executor_callback.py 10.0.0.9:7000

`one_in=…` is `one_in=executor_callback:one_in`: all four workers register the callback, because the
first token of an answer is prefill's and the others are decode's, and the router chooses the pair.
"""

from __future__ import annotations

import sys
from typing import Any

from tandem.logits.callbacks import callback
from tandem_executor import Executor, OutputConfig, Request

REQUESTS = 64
MAX_TOKENS = 16


@callback
def one_in(
    req_id: int, logits: Any, token_ids: list[list[int]], stream_ptr: int | None, client_id: int
) -> None:
    """Leave only tokens whose ids can be divided by the client's id. On a GPU this would be done on
    the stream: docs/logits/callbacks.md.
    """
    kept = logits[..., ::client_id] * 1
    logits[...] = float("-inf")
    logits[..., ::client_id] = kept


def main(router: str) -> None:
    """Ask with the callback and without, and say which answers it shaped."""
    plain = OutputConfig(exclude_input_from_output=True)
    with Executor(router) as executor:
        asked = {}
        for number in range(REQUESTS):
            client_id = 2 + number % 5
            name = "one_in" if number % 2 else None
            request_id = executor.enqueue_request(
                Request(
                    [101, 102, 103 + number],
                    max_tokens=MAX_TOKENS,
                    output_config=plain,
                    logits_post_processor_name=name,
                    client_id=client_id,
                )
            )
            asked[request_id] = name, client_id
        shaped, free = 0, 0
        while asked:
            for response in executor.await_responses():
                if response.has_error():
                    sys.exit(f"{response.error_code}: {response.error_msg}")
                name, client_id = asked.pop(response.request_id)
                (tokens,) = response.result.output_token_ids
                divided = all(token % client_id == 0 for token in tokens)
                if name is None:
                    free += not divided
                else:
                    shaped += divided
    print(f"{shaped} of {REQUESTS // 2} answers are as the callback wants them,")
    print(f"{free} of {REQUESTS // 2} that did not name it are not")


if __name__ == "__main__":
    main(*sys.argv[1:])
