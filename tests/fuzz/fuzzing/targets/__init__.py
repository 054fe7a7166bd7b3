"""Every edge that is fuzzed."""

from fuzzing.target import Target
from fuzzing.targets.bodies import BODIES, FORMS
from fuzzing.targets.descriptions import DESCRIPTIONS
from fuzzing.targets.frontend_frames import FRAMES
from fuzzing.targets.http import HTTP
from fuzzing.targets.kv import ANSWERS, OFFERS
from fuzzing.targets.router import CALLERS, FRONTENDS, WORKERS
from fuzzing.targets.rpc import RPC_CLIENTS, RPC_SERVERS
from fuzzing.targets.sockets import SOCKETS
from fuzzing.targets.worker import DECODE, PREFILL

TARGETS: tuple[Target, ...] = (
    HTTP,
    BODIES,
    FORMS,
    FRONTENDS,
    CALLERS,
    WORKERS,
    DESCRIPTIONS,
    PREFILL,
    DECODE,
    FRAMES,
    OFFERS,
    ANSWERS,
    RPC_SERVERS,
    RPC_CLIENTS,
    SOCKETS,
)
