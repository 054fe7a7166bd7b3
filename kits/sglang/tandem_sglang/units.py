"""What Tandem puts into SGLang, unit by unit. fitting.py looks whether the SGLang that is installed
has what a unit needs, and puts the unit in.

A name of SGLang's is written as "module:name", a module of `sglang.srt` with a dot before it.
Behind the name of a function stand the parameters that Tandem gives, or takes, in brackets. A name
of Tandem's is one of a module beside this one. `{kv}` and `{Kv}` stand for what hands KV over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tandem.engine.kv_tag import KvCheck
from tandem_sglang import mooncake
from tandem_sglang.additions import Additions

Asked = Callable[[Additions], bool]
SCHEDULER: Final = ".managers.scheduler:Scheduler"
KV_MANAGER: Final = ".disaggregation.{kv}:{Kv}KVManager"
KV_RECEIVER: Final = ".disaggregation.{kv}:{Kv}KVReceiver"
_BATCH_INFO: Final = ".sampling.sampling_batch_info:SamplingBatchInfo"
_DECODE: Final = ".disaggregation.decode"


def _always(_: Additions) -> bool:
    return True


def _several_data_ranks(additions: Additions) -> bool:
    return len(additions.states) > 1


def _by_mooncake(additions: Additions) -> bool:
    return additions.transfer_backend == mooncake.NAME


def _by_nixl(additions: Additions) -> bool:
    return not _by_mooncake(additions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One thing that Tandem puts into SGLang."""

    name: str
    promise: str
    """What holds with the unit."""
    asked: Asked = _always
    """Whether an engine with these additions has the unit."""
    parts: Sequence[tuple[str, str]] = ()
    """A class of SGLang's, and a class of Tandem's that a subclass of SGLang's begins with."""
    put: Sequence[str] = ()
    """Functions of Tandem's that are called with the additions."""
    in_worker: bool = False
    """`put` is for the worker's process; else it is for each scheduler's."""


UNITS: Final = (
    Unit(
        name="outputs",
        promise="A step's tokens come in one message of Tandem's own, and hand-overs are measured.",
        parts=[(SCHEDULER, "streamer:OwnOutputs")],
    ),
    Unit(
        name="pages",
        promise="Decode's hand-overs are measured by the pages that decode asked for, and cached"
        " tokens are those of prefill.",
        parts=[(SCHEDULER, "decode_cache:CountsPages")],
    ),
    Unit(
        name="prefill layouts",
        promise="A prefill engine that does not answer keeps no sequence waiting but its own.",
        parts=[
            (SCHEDULER, "layouts:ComesAtOnce"),
            (KV_MANAGER, "layouts:AsksBeside"),
            (KV_RECEIVER, "layouts:KnowsRoutes"),
        ],
    ),
    Unit(
        name="metadata of all ranks",
        promise="A hand-over has come when every rank of prefill has written its metadata.",
        asked=_by_nixl,
        parts=[(KV_MANAGER, "hand_overs:AwaitsAllRanks")],
    ),
    Unit(
        name="messages of peers",
        promise="What another engine sends that cannot be read costs that engine alone.",
        asked=_by_nixl,
        parts=[(KV_MANAGER, "peers:NixlGates")],
    ),
    Unit(
        name="messages of Mooncake's peers",
        promise="What another engine sends that cannot be read costs that engine alone.",
        asked=_by_mooncake,
        parts=[(KV_MANAGER, "peers:MooncakeGates")],
    ),
    Unit(
        name="hand-over tags",
        promise="Decode answers from no other KV than that of the request.",
        asked=lambda additions: additions.kv_check is not KvCheck.OFF,
        parts=[(SCHEDULER, "hand_over_tags:ChecksTags")],
    ),
    Unit(
        name="prefill's load",
        promise="The load of a prefill engine counts the batch that is computed.",
        parts=[(SCHEDULER, "prefill_load:CountsPrefilling")],
    ),
    Unit(
        name="failures",
        promise="A processor or a form that fails ends its request alone, and no step waits for"
        " that.",
        parts=[(SCHEDULER, "isolation:EndsAlone")],
    ),
    Unit(
        name="histories",
        promise="A processor that reads tokens sees every token before its own.",
        parts=[(SCHEDULER, "delayed_sampling:DelaysSampling")],
    ),
    Unit(
        name="forms",
        promise="A form that fails ends its request alone, and what is kept of forms is bounded.",
        parts=[(SCHEDULER, "grammar_queue:ManagesGrammars")],
        put=["grammar_backends:register", "grammars:end_alike"],
    ),
    Unit(
        name="forms of drafts",
        promise="A form that fails where drafts are verified ends its request alone.",
        asked=lambda additions: additions.speculative,
        put=["drafts:end_alike"],
    ),
    Unit(
        name="penalties",
        promise="Penalties count what was put out, and all of it.",
        asked=lambda additions: not additions.speculative,
        put=["penalties:count_outputs"],
    ),
    Unit(
        name="seeds",
        promise="A request's seed decides its tokens, whatever shares its batches.",
        asked=lambda additions: additions.seeded,
        put=["seeds:seed_every_row", "sampler:register"],
    ),
    Unit(
        name="tokens of ranks",
        promise="Ranks that share a sequence take the same tokens, and end the same requests.",
        asked=lambda additions: additions.ranks > 1,
        put=["sampler:register"],
    ),
    Unit(
        name="local store",
        promise="torch's store listens on loopback alone where nobody else needs it.",
        put=["store:keep_local"],
    ),
    Unit(
        name="data-parallel requests",
        promise="The process between data-parallel ranks takes no core while nothing comes, and"
        " ends with a rank that was killed.",
        asked=_several_data_ranks,
        put=["controller:put_in_place"],
        in_worker=True,
    ),
)
