"""The one place through which Tandem reads SGLang's own objects in a scheduler's step: whatever an
exception there would end, it ends one request alone. The objects change from release to release.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tandem.errors import ProcessorError, RequestError, TandemError

log = logging.getLogger(__name__)
Read = TypeVar("Read")


def read(what: Callable[[], Read], failed: Callable[[TandemError], Read]) -> Read:
    """What `what` returns, or where that raises, what `failed` makes of the error with which its
    request is to end.
    """
    try:
        return what()
    except (RequestError, ProcessorError) as error:
        return failed(ProcessorError(error.message))
    except Exception as error:  # of SGLang's objects: it would end the scheduler
        told = f"{type(error).__name__}: {error}"
        log.error("SGLang's own objects cannot be read", extra={"reason": told}, exc_info=error)
        return failed(ProcessorError(f"the engine cannot read its own request ({told})"))
