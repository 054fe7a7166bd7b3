"""The models that this frontend serves: which request is for which, and when their files are
loaded and let go.

A model's files are loaded once a router has workers of it, or a request names it. That is done in a
thread, one model at a time: but a tokenizer's library reads its file in one go and lets nobody else
run meanwhile, for up to a second where it is large.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tandem.errors import (
    ConfigError,
    InvalidRequestError,
    NoPairError,
    NotAllowedError,
    UnknownModelError,
)
from tandem.keys.grant import Grant
from tandem.upstream.demultiplexer import Demultiplexer
from tandem.upstream.model_route import ModelRoute
from tandem.v1 import router_pb2
from tandem.watched_file import LOOK_SECONDS
from tandem_frontend.config import FrontendConfig
from tandem_frontend.metrics import Metrics
from tandem_frontend.model_names import ModelTarget, Names, NamesFile, Targets, choose
from tandem_frontend.openai.answers import ModelCard
from tandem_frontend.openai.limits import ModelLimits
from tandem_frontend.openai.reading.reader import Reader
from tandem_frontend.openai.reading.readers import boot_of

log = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""Until files that could not be used are looked at again."""


class LoadedModel:
    """A served model: its tokenizer, its reader of bodies, and its way to the routers."""

    def __init__(self, config: FrontendConfig, reader: Reader, route: ModelRoute) -> None:
        """`config`: of a frontend that serves this model alone."""
        self.name = config.model_name
        self.reader = reader
        self.tokenizer = reader.tokenizer
        self.route = route
        self.boot = boot_of(config)
        """For a process that reads large bodies."""
        self.created = int(time.time())
        self.shown_at = time.monotonic()
        """When a router was last seen to serve it."""

    @property
    def context_length(self) -> int:
        """The longest context of some pair, as routers said last; else the model's own."""
        served = self.route.served or router_pb2.ServedModel()
        return ModelLimits(self.tokenizer, served).context_length

    @property
    def simulated(self) -> bool:
        """Whether routers said last that a simulated engine serves it."""
        return self.route.served is not None and self.route.served.simulated

    @property
    def lora_adapters(self) -> Sequence[str]:
        """Names of LoRA adapters that some pair has, as routers said last."""
        return self.route.served.lora_adapters if self.route.served is not None else ()


class ChosenModel(NamedTuple):
    """What a request goes to."""

    model: LoadedModel
    lora_adapter: str
    """Which of the model's it is; empty: the model alone."""
    name: str

    def check(self, served: router_pb2.ServedModel) -> None:
        """Raises UnknownModelError for an unknown adapter, NoPairError for a name given here."""
        if not self.lora_adapter or self.lora_adapter in served.lora_adapters:
            return
        if self.name == f"{self.model.name}:{self.lora_adapter}":
            raise UnknownModelError(f"The model `{self.name[:100]}` does not exist", param="model")
        raise NoPairError(f"`{self.name}` stands for a LoRA adapter that is not served here now")


class Models:
    def __init__(
        self,
        config: FrontendConfig,
        demultiplexer: Demultiplexer,
        metrics: Metrics,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw`: a random number from 0 to below 1. Raises ConfigError for `model_path`."""
        self._config = config
        self._demultiplexer = demultiplexer
        self._metrics = metrics
        self._draw = draw
        self._loaded: dict[str, LoadedModel] = {}
        self._loading: dict[str, asyncio.Task[LoadedModel | None]] = {}
        self._turn = asyncio.Lock()
        """Held by whoever loads a model's files."""
        self._failed: dict[str, float] = {}
        """Models whose files could not be used, and when."""
        self._first = config.model_name
        self._paths: Mapping[str, Path] = {}
        """The folder of each known model's files, by the model's name."""
        self._file = NamesFile(config.model_names_file) if config.model_names_file else None
        self._names = self._all_names()
        metrics.names.stale.set_function(lambda: bool(self._file and self._file.stale))
        for name, folder in config.models.items():
            if not _holds_model(Path(folder)):
                raise ConfigError(f"models: {folder} holds no model (no config.json): {name}")
        if self._first:
            own = config.of_model(self._first, Path(config.model_path))
            self._add(own, Reader.load(own))
        self._look_for_folders()

    # --- requests ---

    async def choose(self, name: str | None, user: str | None, grant: Grant | None) -> ChosenModel:
        """What a request for a name goes to; None: it names none. `user` is the client's word for
        who asks. Whether workers have the adapter is yet to be checked.

        Raises UnknownModelError for what is no name here, NotAllowedError where the key is not
        allowed it, and NoPairError where what it stands for is not served here.
        """
        name = name or self._default()
        targets = self._targets(name)
        if not targets:
            raise self._unknown(name, grant)
        if not self._allows(grant, name, targets):
            raise NotAllowedError(f"This key is not allowed the model `{name}`", param="model")
        model, adapter = self._parts(choose(name, targets, user, self._draw))
        loaded = self._loaded.get(model) or await self._load(name, model)
        return ChosenModel(loaded, adapter, name)

    def cards(self, grant: Grant | None) -> list[ModelCard]:
        return [card for name in self._listed_names() if (card := self._card(name, grant))]

    def card(self, name: str, grant: Grant | None) -> ModelCard:
        """Raises UnknownModelError for what is no name here, or not for this key."""
        if card := self._card(name, grant):
            return card
        raise self._unknown(name, grant)

    # --- from second to second ---

    async def follow(self) -> None:
        """Take models and names as they come and go, until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                await self.look()

    async def look(self) -> None:
        if self._file is not None:
            failures = self._file.failures
            if await asyncio.to_thread(self._file.look):
                self._names = self._all_names()
            self._metrics.names.failures.inc(self._file.failures - failures)
        if self._config.models_folder:
            await asyncio.to_thread(self._look_for_folders)
        now, shown = time.monotonic(), self._demultiplexer.shown_models
        for name in shown & self._paths.keys() - self._loaded.keys() - self._loading.keys():
            self._begin_load(name)
        for model in [each for each in self._loaded.values() if each.name != self._first]:
            if model.name in shown or not model.route.idle:
                model.shown_at = now
            elif now - model.shown_at >= self._config.model_unload_seconds:
                self._unload(model)

    # --- names ---

    def _default(self) -> str:
        if self._first:
            return self._first
        known = list(self._paths)
        if len(known) == 1:
            return known[0]
        raise InvalidRequestError("`model` is required: several are served here", param="model")

    def _all_names(self) -> Names:
        aliases = {each: (ModelTarget(self._first, 1.0),) for each in self._config.model_aliases}
        return aliases if self._file is None else {**aliases, **self._file.content}

    def _targets(self, name: str) -> Targets:
        """What a name stands for; nothing: it is none."""
        if targets := self._names.get(name):
            return targets
        return (ModelTarget(name, 1.0),) if self._knows(self._parts(name)[0]) else ()

    def _parts(self, name: str) -> tuple[str, str]:
        """The model and the adapter of model:adapter, unless a model itself is called so."""
        model, _, adapter = name.rpartition(":")
        if adapter and self._knows(model) and not self._knows(name):
            return model, adapter
        return name, ""

    def _knows(self, model: str) -> bool:
        return model in self._paths or model in self._loaded

    def _unknown(self, name: str, grant: Grant | None) -> UnknownModelError:
        """The error for an unknown name, which tells a key of served models it may use alone."""
        allowed = grant is None or grant.models is None or name in grant.models
        shown = name not in self._paths and name in self._demultiplexer.shown_models
        why = (
            "is served by workers, but this frontend has no files of it: see `models`"
            if allowed and shown
            else "does not exist"
        )
        return UnknownModelError(f"The model `{name[:100]}` {why}", param="model")

    def _allows(self, grant: Grant | None, name: str, targets: Targets) -> bool:
        """A key has a name itself, or all models that the name stands for, by any name of each."""
        allowed = None if grant is None else grant.models
        if allowed is None or name in allowed:
            return True
        own = {each for each in allowed if len(self._targets(each)) == 1}
        models = {self._targets(each)[0].model for each in own}
        return all(target.model in models for target in targets)

    def _listed_names(self) -> Iterator[str]:
        own = [
            name
            for model in self._loaded.values()
            for name in (model.name, *(f"{model.name}:{each}" for each in model.lora_adapters))
        ]
        yield from dict.fromkeys((*own, *self._names))

    def _card(self, name: str, grant: Grant | None) -> ModelCard | None:
        """None: it is not shown."""
        targets = self._targets(name)
        models = [model for each in targets if (model := self._present(each.model))]
        if not models or not self._allows(grant, name, targets):
            return None
        longest = min(model.context_length for model in models)
        created = min(model.created for model in models)
        card = ModelCard(id=name, created=created, max_model_len=longest)
        base, adapter = self._parts(targets[0].model)
        if adapter and len(targets) == 1:
            card.root, card.parent = targets[0].model, base
        if any(model.simulated for model in models):
            card.simulated = True
        return card

    def _present(self, name: str) -> LoadedModel | None:
        """A model that is loaded, with an adapter if one is named; None: it is not here."""
        model, adapter = self._parts(name)
        loaded = self._loaded.get(model)
        if loaded is None or (adapter and adapter not in loaded.lora_adapters):
            return None
        return loaded

    # --- files ---

    def _look_for_folders(self) -> None:
        """Find all models that are known; what settings say of a name goes first."""
        config = self._config
        found = {name: Path(folder) for name, folder in config.models.items()}
        if self._first:
            found[self._first] = Path(config.model_path)
        if config.models_folder:
            for folder in _models_in(Path(config.models_folder)):
                found.setdefault(folder.name, folder)
        most = config.max_models
        if len(found) > most and len(self._paths) < most:
            extra = {"count": len(found)}
            log.warning("there are more models than max_models: the last are left out", extra=extra)
        self._paths = dict(list(found.items())[:most])

    async def _load(self, name: str, chosen: str) -> LoadedModel:
        """The model that a name stands for. Raises NoPairError where it cannot be had."""
        if chosen not in self._paths:
            raise NoPairError(f"`{name}` stands for a model that is not served here now")
        model = await asyncio.shield(self._loading.get(chosen) or self._begin_load(chosen))
        if model is None:
            raise NoPairError(f"The files of the model `{chosen}` cannot be used here")
        return model

    def _begin_load(self, name: str) -> asyncio.Task[LoadedModel | None]:
        self._loading[name] = task = self._tasks.create_task(self._load_files(name))
        task.add_done_callback(lambda done: self._loading.pop(name))
        return task

    async def _load_files(self, name: str) -> LoadedModel | None:
        """None: they cannot be used, or could not a moment ago."""
        async with self._turn:
            now = time.monotonic()
            if now - self._failed.get(name, -RETRY_SECONDS) < RETRY_SECONDS:
                return None
            config = self._config.of_model(name, self._paths[name])
            try:
                reader = await asyncio.to_thread(Reader.load, config)
            except Exception as error:  # whatever is wrong with one model is its own affair
                self._failed[name] = now
                extra = {"model": name, "reason": str(error)}
                log.exception("the files of a model cannot be used", extra=extra)
                return None
        self._failed.pop(name, None)
        return self._add(config, reader)

    def _add(self, config: FrontendConfig, reader: Reader) -> LoadedModel:
        name = config.model_name
        route = self._demultiplexer.add(name, reader.tokenizer.sha256)
        self._loaded[name] = model = LoadedModel(config, reader, route)
        self._metrics.models.loaded(name, ready=lambda: route.ready)
        log.info("model loaded", extra={"model": name})
        return model

    def _unload(self, model: LoadedModel) -> None:
        del self._loaded[model.name]
        self._demultiplexer.remove(model.route)
        self._metrics.models.unloaded(model.name)
        log.info("model unloaded: no router serves it", extra={"model": model.name})


def _models_in(folder: Path) -> list[Path]:
    """The folders in `folder` that hold models, by name; an unreadable one holds none."""
    try:
        return sorted(each for each in folder.iterdir() if _holds_model(each))
    except OSError:
        return []


def _holds_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()
