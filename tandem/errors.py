"""Every failure that crosses a seam of Tandem, as one tree.

    TandemError
    ├── RequestError            the client's mistake; nothing ran, but for the last of them
    │   ├── InvalidRequestError     a field has a wrong type or value
    │   ├── UnsupportedError        a field this deployment does not offer
    │   ├── ContextLengthError      prompt and max_tokens exceed the context
    │   ├── UnknownModelError       no such model
    │   ├── AuthenticationError     no key, or a wrong one
    │   ├── NotAllowedError         the key is not allowed what is asked for
    │   ├── RateLimitError          the key's limits are reached
    │   ├── TooLargeError           the body exceeds its limit
    │   ├── NotConfiguredError      the deployment has not set up what is asked for
    │   ├── VoucherError            a voucher is stale, foreign, altered or used
    │   └── ContradictionError      its fields leave no token that may come: seen while it ran
    ├── RefusedError            not admitted, through no fault of the request; nothing ran
    │   ├── QueueFullError          the router's queue is at its bound
    │   ├── ParkingFullError        the prefill worker may keep no more KV
    │   ├── NoPairError             no matching prefill and decode worker is ready
    │   ├── DrainingError           the component is shutting down
    │   └── RouterLostError         the frontend has no router, or has lost it
    ├── DeadlineError           the request's time ran out
    ├── CancelledError          the client went away, or asked for it
    ├── SlowClientError         the client does not read; its backlog reached the bound
    ├── WorkerError             a worker failed while it held the request
    │   ├── WorkerLostError         its stream broke: crashed, killed or unreachable
    │   ├── EngineError             its engine failed or refused
    │   └── KvTransferError         the KV cache did not arrive
    │       └── KvCorruptError          it arrived damaged, or is another request's
    ├── HookError               an output hook raised or returned nonsense: failed closed
    ├── ClassifierError         a classifier could not judge what it was asked to
    ├── ProcessorError          a logits processor raised: failed closed
    └── InternalError           a fault of ours
    StartError                  a component cannot start; the message says what to do
    ├── ConfigError                 a setting is unknown, malformed or impossible
    └── LoadError                   user code cannot be loaded

A TandemError knows its code (stable, for programs), its HTTP status and its gRPC status; it travels
as tandem.v1.Error.
"""

from __future__ import annotations

from typing import ClassVar

import grpc

from tandem.v1 import common_pb2

MAX_MESSAGE_CHARS = 2000
"""The longest message of an error, as it travels."""
MAX_PARAM_CHARS = 200
"""The longest name of a field that an error from elsewhere may give."""


class TandemError(Exception):
    """A failure with a stable code. `phase` and `param` say where, when that is known."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    kind: ClassVar[str] = "server_error"  # OpenAI's error `type`

    def __init__(
        self,
        message: str,
        *,
        phase: common_pb2.Phase.ValueType = common_pb2.PHASE_UNSPECIFIED,
        param: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.phase = phase
        self.param = param

    def to_proto(self) -> common_pb2.Error:
        """The message that carries this error between components: valid text, and not long,
        whatever an engine or a library has said.
        """
        message = self.message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()
        return common_pb2.Error(code=self.code, message=message, phase=self.phase, param=self.param)


def from_proto(error: common_pb2.Error) -> TandemError:
    """The inverse of `to_proto`; a code this version does not know becomes an InternalError, and
    what is too long for an error is cut.
    """
    known = _BY_CODE.get(error.code, InternalError)
    phase = error.phase if error.phase in common_pb2.Phase.values() else 0
    return known(
        error.message[:MAX_MESSAGE_CHARS],
        phase=phase,  # type: ignore[arg-type]  # 0 is one of them
        param=error.param[:MAX_PARAM_CHARS],
    )


class RequestError(TandemError):
    code = "invalid_request"
    http_status = 400
    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    kind = "invalid_request_error"


class InvalidRequestError(RequestError):
    """A field has a wrong type or value."""


class UnsupportedError(RequestError):
    """A field, or a value of one, that this deployment does not offer."""

    code = "unsupported_parameter"


class ContextLengthError(RequestError):
    """Prompt and completion together exceed the model's context."""

    code = "context_length_exceeded"


class UnknownModelError(RequestError):
    """No worker serves this model."""

    code = "model_not_found"
    http_status = 404
    grpc_status = grpc.StatusCode.NOT_FOUND


class AuthenticationError(RequestError):
    """No API key, or a wrong one."""

    code = "invalid_api_key"
    http_status = 401
    grpc_status = grpc.StatusCode.UNAUTHENTICATED
    kind = "authentication_error"


class NotAllowedError(RequestError):
    """The client's key is not allowed the model, the processor or the priority that it names."""

    code = "not_allowed"
    http_status = 403
    grpc_status = grpc.StatusCode.PERMISSION_DENIED
    kind = "permission_error"


class RateLimitError(RequestError):
    """The client's key has used up what it may at a time, or in a minute."""

    code = "rate_limit_exceeded"
    http_status = 429
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    kind = "rate_limit_error"
    retry_after_seconds = 1.0
    """When a request may be let in again; nobody knows when one of those that are open will end."""


class TooLargeError(RequestError):
    """The body is larger than the frontend takes."""

    code = "request_too_large"
    http_status = 413


class NotConfiguredError(RequestError):
    """The path is known, and the deployment's settings do not offer it."""

    code = "not_configured"
    http_status = 501
    grpc_status = grpc.StatusCode.UNIMPLEMENTED


class VoucherError(RequestError):
    """The KV that a generation-only request names is not there for it: see the message."""

    code = "voucher_refused"
    http_status = 409
    grpc_status = grpc.StatusCode.FAILED_PRECONDITION


class ContradictionError(RequestError):
    """What a request asks of its answer leaves no token that may come next. Seen before anything
    runs, that is an InvalidRequestError.
    """

    code = "contradictory_request"


class RefusedError(TandemError):
    code = "unavailable"
    http_status = 503
    grpc_status = grpc.StatusCode.UNAVAILABLE
    kind = "overloaded_error"


class QueueFullError(RefusedError):
    """The router's queue is at its bound: try again later."""

    code = "queue_full"
    http_status = 429
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED


class ParkingFullError(RefusedError):
    """The prefill worker keeps as much KV for later requests as it may: try again later."""

    code = "parking_full"
    http_status = 429
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED


class NoPairError(RefusedError):
    """No prefill and decode worker with equal fingerprints take work."""

    code = "no_pair"


class DrainingError(RefusedError):
    """The component is shutting down and starts nothing new."""

    code = "draining"


class RouterLostError(RefusedError):
    """No router takes the request, or the one that had it was lost; then it may have begun."""

    code = "router_lost"


class DeadlineError(TandemError):
    """The request's time ran out."""

    code = "deadline_exceeded"
    http_status = 504
    grpc_status = grpc.StatusCode.DEADLINE_EXCEEDED
    kind = "timeout_error"


class CancelledError(TandemError):
    """The client went away, or asked for it. (Not asyncio's: that one ends a task.)"""

    code = "cancelled"
    http_status = 499
    grpc_status = grpc.StatusCode.CANCELLED
    kind = "cancelled"


class SlowClientError(TandemError):
    """The client reads more slowly than tokens come, and its backlog reached the bound."""

    code = "slow_client"
    http_status = 499
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    kind = "cancelled"


class WorkerError(TandemError):
    code = "worker_error"
    http_status = 502
    grpc_status = grpc.StatusCode.UNAVAILABLE


class WorkerLostError(WorkerError):
    """A worker's stream broke while it held the request."""

    code = "worker_lost"


class EngineError(WorkerError):
    """A worker's engine failed or refused the request."""

    code = "engine_error"


class KvTransferError(WorkerError):
    """The KV cache did not reach the decode worker."""

    code = "kv_transfer_failed"


class KvCorruptError(KvTransferError):
    """The KV that reached the decode worker is damaged, or not the request's."""

    code = "kv_corrupt"


class HookError(TandemError):
    """An output hook raised, or answered no verdict: nothing of its chunk is shown."""

    code = "hook_failed"


class ClassifierError(TandemError):
    """A classifier raised, was late or answered nonsense, or its process has ended: there is no
    judgement.
    """

    code = "classifier_failed"


class ProcessorError(TandemError):
    """A logits processor failed: the request ends, the rest of the batch goes on."""

    code = "logits_processor_failed"


class InternalError(TandemError):
    """A fault of Tandem's own."""


class StartError(Exception):
    """A component cannot start. The message says what to change; the exit status is 2."""


class ConfigError(StartError):
    """A setting is unknown, malformed, or impossible beside another."""


class MissingSettingError(ConfigError):
    """A setting was not given, and without it nothing can be served."""


class LoadError(StartError):
    """Code named in the configuration cannot be loaded."""


def _leaves(base: type[TandemError]) -> list[type[TandemError]]:
    return [base, *(leaf for child in base.__subclasses__() for leaf in _leaves(child))]


# InvalidRequestError shares its parent's code on purpose; the later class of a code wins.
_BY_CODE: dict[str, type[TandemError]] = {cls.code: cls for cls in _leaves(TandemError)}
_BY_CODE[InternalError.code] = InternalError
CODES = tuple(_BY_CODE)
"""Every code that a failure can have on the wire."""
