"""One model's part of the way to the routers: what they say of it, and by which streams its
requests go.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from math import inf

from tandem import errors
from tandem.upstream.answer import RequestClient
from tandem.upstream.dispatch import Dispatcher
from tandem.upstream.router_stream import RouterStream
from tandem.upstream.router_view import RouterView
from tandem.upstream.served_model import takes, union
from tandem.v1 import router_pb2

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ModelRoute:
    model: str
    """The name that requests give; empty: the only model that routers serve."""
    tokenizer_sha256: str
    """The tokenizer that made the prompts; empty: whoever wrote prompts answers for that."""
    dispatcher: Dispatcher
    open_requests: int = field(default=0, init=False)
    served: router_pb2.ServedModel | None = field(default=None, init=False)
    """The model as all routers in use see it; None: unknown, or with another tokenizer."""

    @property
    def ready(self) -> bool:
        """Whether a request would find a pair for the model now, or wait for one."""
        used = bool(self.dispatcher.in_use)
        served = used and self.served is not None and takes(self.served)
        return served or self.dispatcher.expects_pair

    @property
    def paired(self) -> bool:
        """Whether a pair for the model takes work now, as far as routers have said."""
        used = bool(self.dispatcher.in_use)
        return used and self.served is not None and self.served.ready_pairs > 0

    @property
    def idle(self) -> bool:
        """Whether no request is open, nor waits for the first pair."""
        return not (self.open_requests or self.dispatcher.early)

    @property
    def kv_cache(self) -> router_pb2.KvCache | None:
        """What routers last said of the KV caches of the model's decode workers."""
        served = self.served
        return served.kv_cache if served is not None and served.HasField("kv_cache") else None

    async def served_model(
        self, client: RequestClient, timeout_seconds: float | None
    ) -> router_pb2.ServedModel:
        """The limits of the workers. Waits, as long as a request may wait, where no router has said
        yet what they are.

        Raises RefusedError after that and where no workers serve the model, and CancelledError once
        the client has gone.
        """
        await self.dispatcher.first_pair(client, timeout_seconds or inf)
        if self.served is None:
            raise errors.NoPairError("No workers serve the model now; try again later")
        return self.served

    def saw(self, stream: RouterStream, fleet: router_pb2.Fleet) -> None:
        """A router that has only just started knows no workers: it is used once it has a pair, or
        has had one. What a draining one still says of its fleet is not for what waits.
        """
        if stream.draining:
            return
        was_foreign = stream.view_of(self.model).foreign
        stream.views[self.model] = view = self._view(fleet)
        if view.foreign and not was_foreign:
            log.error(
                "the workers of the served model have another tokenizer: it is not served",
                extra={"model": self.model},
            )
        served = union(view.models)
        if served is not None and takes(served):
            self.dispatcher.use(stream)
        self.note_served()

    def note_served(self) -> None:
        """Join the models of the routers in use; without a router the last one stays."""
        if streams := self.dispatcher.in_use:
            views = [stream.view_of(self.model) for stream in streams]
            self.served = union([model for view in views for model in view.models])

    def _view(self, fleet: router_pb2.Fleet) -> RouterView:
        """What requests are for, of all that a router serves or is to serve."""
        named = [model for model in fleet.models if self.model in ("", model.name)]
        tokenizer = self.tokenizer_sha256
        mine = [model for model in named if tokenizer in ("", model.tokenizer_sha256)]
        foreign = not mine and any(map(takes, named))
        expects = any(self.model in ("", name) for name in fleet.expected)
        comes = any(self.model in ("", name) or not name for name in fleet.coming)
        if foreign or not (expects or comes):
            return RouterView(mine, foreign=foreign)
        return RouterView(mine, expects=expects, pair_wait_seconds=fleet.pair_wait_ms / 1000)
