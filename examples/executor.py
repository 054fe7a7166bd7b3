"""One prompt through the Executor API, streamed to the terminal:

    python examples/executor.py 127.0.0.1:7000 model/tandem-tiny "Once upon a time"

The address is the router's; the folder is that of the model which its workers serve, and only its
tokenizer is read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer

from tandem_executor import Executor, FinishReason, Request, SamplingConfig


def main(router: str, model_path: str, text: str) -> None:
    """Print what the model makes of a text, token by token."""
    tokenizer = Tokenizer.from_file(str(Path(model_path) / "tokenizer.json"))
    request = Request(
        tokenizer.encode(text).ids,
        max_tokens=32,
        streaming=True,
        sampling_config=SamplingConfig(top_p=0.9, temperature=0.7, seed=7),
    )
    with Executor(router) as executor:
        request_id = executor.enqueue_request(request)
        token_ids: list[int] = []
        shown, reason = "", FinishReason.NOT_FINISHED
        while reason is FinishReason.NOT_FINISHED:
            for response in executor.await_responses(request_id):
                if response.has_error():
                    sys.exit(f"{response.error_code}: {response.error_msg}")
                token_ids += response.result.output_token_ids[0]
                reason = response.result.finish_reasons[0]
            so_far = tokenizer.decode(token_ids)  # a character may be of several tokens
            print(so_far.removeprefix(shown), end="", flush=True)
            shown = so_far
    print(f"\n({reason.name})")


if __name__ == "__main__":
    main(*sys.argv[1:])
