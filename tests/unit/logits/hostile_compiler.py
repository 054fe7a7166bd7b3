"""A compiler of forms that does what the form's source says: for tests of what survives it."""

from __future__ import annotations

import ctypes
import os
import resource
import threading
import time

from tandem.logits.forms.compiler import CompiledForm, Kind
from tandem.logits.model import Model


class HostileCompiler:
    def __init__(self, broken: bool = False) -> None:
        if broken:
            raise RuntimeError("no tokenizer here")

    def compile(self, kind: Kind, source: str) -> CompiledForm:
        match source:
            case "crash":
                ctypes.string_at(0)
            case "exit":
                os._exit(0)
            case "spin":
                while True:
                    pass
            case "sleep":
                time.sleep(3600)
            case "eat":
                return CompiledForm(str(len(b"x" * 2**28)).encode())
            case "recurse":
                self.compile(kind, source)
            case "panic":
                raise SystemExit
            case "wrong":
                raise ValueError("it has an error")
            case "kill the process":
                os.kill(os.getppid(), 9)
                time.sleep(3600)
            case "threads":
                together = threading.Barrier(8)
                threads = [threading.Thread(target=together.wait, args=(30,)) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            case "limits":
                cpu, core = (
                    resource.getrlimit(limit)
                    for limit in (resource.RLIMIT_CPU, resource.RLIMIT_CORE)
                )
                return CompiledForm(f"{cpu} {core}".encode())
            case "quiet":
                os.write(2, b"the client's words")
        return CompiledForm(f"{os.getppid()}".encode())


class PlainForm:
    """As much of a form as a workshop sees."""

    def __init__(self, source: str, kind: Kind = "regex") -> None:
        self.source = source
        self.kind: Kind = kind
        self.compiled = self.kept = b""
        self.shortest: int | None = None

    def use(self, compiled: bytes, model: Model) -> None:
        self.compiled = compiled

    def keep(self, compiled: bytes) -> None:
        self.kept = compiled

    def fresh(self) -> PlainForm:
        return self

    def __call__(self, input_ids: object, logits: object) -> None: ...
