"""`tandem init`: writes a stack's file to begin with."""

from __future__ import annotations

import argparse
from pathlib import Path

from tandem.cli.commands import Command
from tandem.cli.console import Console
from tandem.errors import StartError

FILE = Path("stack.yaml")
EXAMPLE = """\
# A stack of Tandem:  tandem up --config stack.yaml
# Is all of it right? tandem config check stack.yaml
# The sections are those of the chart's values: helm install -f stack.yaml serves it on Kubernetes.
# For an editor:      tandem config schema > stack.schema.json
# yaml-language-server: $schema=stack.schema.json

model:
  uri: ""                     # file:///folder of a model; empty: the tiny one
  # name: my-model            # what requests call it; empty: the folder's name
engine:
  type: auto                  # sglang, vllm, sim, or auto: SGLang where it is installed
  # options: {step_ms: 5}     # of the engine, for all workers

# What looks at each piece of each answer before a client sees it, in order.
hooks:
  chain:
    - {path: secrets}         # ready-made: keys and tokens become [redacted]
    - {path: banned_phrases, config: {phrases: [project bluebird]}}
    # - my_hook:NoSecrets     # a class of yours, in the folder where `tandem up` is started

# What judges answers. Example: {hold_back: window, entries: ["my_judge:Judge"]}
classifiers: {}
# What changes logits. Example: {hello: {use: "my_processor:Hello", always: true}}
logitsProcessors: {}

frontend:
  service: {port: 8000}
  config: {}                  # settings of docs/configuration.md, such as max_open_requests: 500
  # apiKeysFile: {path: /etc/tandem/keys.jsonl}   # lines of `tandem keys new NAME`
router:
  config: {}                  # such as max_queue: 200
prefill:
  replicas: 1                 # so many workers
  config: {}
decode:
  replicas: 1
  config: {max_sequences: 64}
worker:
  enabled: false              # workers that serve both phases, beside these or alone
logs: {format: console, level: info}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, nargs="?", default=FILE, help="The file to write. [%(default)s]"
    )


def init(arguments: argparse.Namespace, console: Console) -> int:
    """Raises StartError where the file is there already, or cannot be written."""
    path: Path = arguments.file
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(EXAMPLE)
    except FileExistsError:
        raise StartError(f"{path} is there already: name another file") from None
    except OSError as error:
        raise StartError(f"cannot write {path}: {error.strerror}") from error
    console.result({"file": path})
    console.done(f"wrote {path}")
    console.line(f"tandem config check {path}   says whether a stack would start with it")
    console.line(f"tandem up --config {path}    starts the stack")
    return 0


COMMAND = Command(add_arguments, init, example="tandem init && tandem up --config stack.yaml")
