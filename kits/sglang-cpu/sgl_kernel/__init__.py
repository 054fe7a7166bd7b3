"""A stand-in for SGLang's CUDA kernels: it can be imported, and nothing in it can be called.

SGLang imports names from `sgl_kernel` when its modules load, on every platform, and uses them on a
GPU alone. Some are read deeper at that time (`scalar_types.uint4b8`), so a missing name answers
with an object that has every attribute, and raises when it is called.

Where the real distribution is installed too, importing this package is an error: SGLang only logs
what a plugin's `register` raises, and a hidden kernel must not pass in silence.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

from tandem_sglang_cpu import refuse_beside_real_kernels


class _Missing:
    """A kernel, or a member of one, that only the CUDA build has."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> "_Missing":
        if name.startswith("__"):  # protocols (copy, pickle, inspect) must see that we have none
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError(
            f"{self.__name__} needs a GPU: tandem-sglang-cpu only stands in for sglang-kernel"
        )


class _StubModule(types.ModuleType):
    """A module, and a package, with every attribute."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        member = _Missing(f"{self.__name__}.{name}")
        setattr(self, name, member)  # the same object at every look
        return member


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule `sgl_kernel.*`, whatever its name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run: the module is its `__getattr__`."""


refuse_beside_real_kernels()
sys.meta_path.append(_StubFinder())
sys.modules[__name__].__class__ = _StubModule
