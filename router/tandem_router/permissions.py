"""What a request may ask for beside text. Frontends hold the same rules; here they hold for whoever
else reaches the router's port, and for the Generate call.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from tandem import sampling
from tandem.errors import InvalidRequestError, UnsupportedError
from tandem.v1 import common_pb2
from tandem_router.core.values import NOTHING, Needs

OF_FIELDS = frozenset(
    {"json_schema", "regex", "choice", "ebnf", "tagged", "min_new_tokens", "thinking_budget"}
)
"""Processors behind `response_format`, `guided_...`, tools, `min_tokens` and
`thinking_token_budget`: all clients may use them."""
_MAY_BE_REFUSED = frozenset(common_pb2.UsedParams.DESCRIPTOR.fields_by_name)
MOST_ADAPTER_CHARACTERS = 64
"""The longest name of a LoRA adapter that a worker has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """As the settings of the same names say."""

    client_logits_processors: tuple[str, ...] = ()
    allow_reports: bool = False
    allow_external_scores: bool = False
    allow_kv_hints: bool = False

    def check(self, task: bytes) -> Needs:
        """What it names that not all workers may have. Raises UnsupportedError for what is not
        offered, and InvalidRequestError for bytes that are no tandem.v1.Task. Neither the prompt
        nor arguments are read.
        """
        try:
            asked = common_pb2.TaskRequests.FromString(task)
        except DecodeError as error:
            raise InvalidRequestError("the task is no tandem.v1.Task") from error
        if asked.want_report and not self.allow_reports:
            raise UnsupportedError("this router lets no reports pass", param="tandem.report")
        if asked.want_external_scores and not self.allow_external_scores:
            raise UnsupportedError(
                "this router lets no external scores pass", param="tandem.external_scores"
            )
        if asked.kv_hints and not self.allow_kv_hints:
            raise UnsupportedError("this router lets no hints for caches pass", param="kv_hints")
        for place, processor in enumerate(asked.logits.processors):
            name = processor.name
            if name not in OF_FIELDS and name not in self.client_logits_processors:
                raise UnsupportedError(
                    f"this router lets no logits processor {name[:64]!r} pass",
                    param=f"logits_processors[{place}].name",
                )
        if len(asked.lora_adapter) > MOST_ADAPTER_CHARACTERS:
            raise InvalidRequestError(
                f"a LoRA adapter's name has at most {MOST_ADAPTER_CHARACTERS} characters",
                param="lora_adapter",
            )
        names = asked.logits.processors
        used = sampling.used(asked.sampling, _MAY_BE_REFUSED)
        if not (names or used or asked.lora_adapter):
            return NOTHING
        known = frozenset([each.name for each in names])
        return Needs(
            logits_processors=known, lora_adapter=asked.lora_adapter, sampling=frozenset(used)
        )
