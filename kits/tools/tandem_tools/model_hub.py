"""hf:// : models of Hugging Face's hub, or of a mirror that speaks its protocol.

The `huggingface_hub` library does the work: it reads HF_TOKEN and HF_ENDPOINT, brings each file
under another name first, and keeps the files that are whole when it is called again.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from tandem import config
from tandem.errors import ConfigError
from tandem_tools.model_folder import FetchError, ModelFolder
from tandem_tools.model_sources import SourceFiles

T = TypeVar("T")
ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 1.0
"""After a failure that may pass; doubled each time."""
_BY_THE_VOLUME = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


class Hub:
    """One repository at one revision; "" is its main branch."""

    def __init__(self, repository: str, revision: str, folder: ModelFolder) -> None:
        """Raises ConfigError where the library is not installed."""
        # Read when the library is imported. Its home may be read-only, the model's folder is not.
        home = str(folder.work / "huggingface-home")
        config.export({"HF_HOME": home, "HF_HUB_DISABLE_PROGRESS_BARS": "1"})
        try:
            import huggingface_hub
        except ImportError as error:
            raise ConfigError(
                "fetching from hf:// needs: pip install 'tandem-serving[hub]'"
            ) from error
        self._hub = huggingface_hub
        self._repository = repository
        self._revision = revision or None

    def listing(self) -> SourceFiles:
        info = self._try(
            lambda: self._hub.HfApi().model_info(
                self._repository, revision=self._revision, files_metadata=True
            )
        )
        files = {each.rfilename: each.size or 0 for each in info.siblings or ()}
        return SourceFiles(files, info.sha or "")

    def bring(self, names: Collection[str], commit: str, folder: ModelFolder) -> None:
        self._try(
            lambda: self._hub.snapshot_download(
                self._repository,
                revision=commit or self._revision,
                allow_patterns=list(names),
                local_dir=folder.path,
            )
        )

    def _try(self, call: Callable[[], T]) -> T:
        """Again after what may pass, ATTEMPTS times in all."""
        pause = FIRST_PAUSE_SECONDS
        for _ in range(ATTEMPTS - 1):
            try:
                return self._once(call)
            except _PassingError:
                time.sleep(pause)
                pause *= 2
        try:
            return self._once(call)
        except _PassingError as error:
            raise FetchError(f"{error}, {ATTEMPTS} times") from error

    def _once(self, call: Callable[[], T]) -> T:
        """Raises FetchError for what stays, _PassingError for what may pass."""
        # httpx comes with the library.
        import httpx
        from huggingface_hub import errors

        name = self._repository
        try:
            return call()
        except errors.GatedRepoError as error:
            raise FetchError(
                f"{name} is gated: accept its terms on the hub, and set HF_TOKEN to a token of "
                "that account"
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise FetchError(
                f"the hub shows no model {name}: check its name; if it is private, set HF_TOKEN"
            ) from error
        except errors.RevisionNotFoundError as error:
            raise FetchError(f"{name} has no revision {self._revision}") from error
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            if status in (401, 403):
                raise FetchError(f"the hub refuses {name} ({status}): check HF_TOKEN") from error
            if 400 <= status < 500 and status not in (408, 429):
                raise FetchError(f"the hub answers {status} for {name}") from error
            raise _PassingError(f"the hub answers {status}") from error
        except (httpx.HTTPError, errors.XetDownloadError) as error:
            raise _PassingError(f"the hub does not answer ({type(error).__name__})") from error
        except OSError as error:
            if error.errno in _BY_THE_VOLUME:
                raise
            # Offline, interrupted, or a file that came short.
            raise _PassingError(f"the download broke off ({type(error).__name__})") from error


class _PassingError(Exception):
    """A download that broke off and may succeed when it is tried again."""
