"""What Triton asks of a backend's compiler. The interpreter asks nothing."""

from typing import Any

from triton.backends.compiler import BaseBackend


class NoCompiler(BaseBackend):
    """It supports no target."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        return False

    def hash(self) -> str:
        return "none"

    def parse_options(self, options: Any) -> Any:
        raise NotImplementedError

    def add_stages(self, *_: Any) -> None:
        raise NotImplementedError

    def load_dialects(self, context: Any) -> None:
        raise NotImplementedError

    def get_module_map(self) -> dict[str, Any]:
        return {}
