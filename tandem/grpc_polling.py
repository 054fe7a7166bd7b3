"""Chooses gRPC's older poller for this process. Import it before anything that imports gRPC, which
reads its environment then and not again.

gRPC's event engine hands each message that comes in from thread to thread before asyncio has it.
Without it a streamed token costs a fifth less at 64 streams: see docs/benchmarks.md. Whoever sets
GRPC_EXPERIMENTS decides for themselves.
"""

from __future__ import annotations

import os

os.environ.setdefault(  # noqa: TID251 - tandem.config imports gRPC, through its errors
    "GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener"
)
