"""What every form of an answer is: a processor that is compiled before it can be used."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

from tandem.logits.forms import compiler
from tandem.logits.model import Model
from tandem.logits.ready.masks import MaskingProcessor


class FormError(Exception):
    """No token can follow by a form: those so far do not fit it, or finding one takes too much."""


class Form(MaskingProcessor):
    """A form is made from a client's arguments, which is cheap; `use` gives it what compiling its
    source came to; then each sequence gets a `fresh` one.
    """

    kind: ClassVar[compiler.Kind]
    """What language `source` is in."""
    shortest: int | None = None
    """Tokens of the shortest answer that is known, without its end; None: none is known."""

    @property
    @abstractmethod
    def source(self) -> str:
        """The form's text, which a compiler compiles."""

    @abstractmethod
    def use(self, compiled: bytes, model: Model) -> None:
        """Be ready for sequences. `compiled`: what tandem.logits.forms.compiler made of `source`.
        Raises ValueError.
        """

    def keep(self, compiled: bytes) -> None:
        """Take what was compiled for an engine that runs forms of this kind itself."""

    def begins(self, token_ids: Sequence[int], model: Model) -> bool:
        """Whether an answer begins with these tokens, which may have an end, as far as is known
        here: an engine may have the only one who knows.
        """
        return True

    def fresh(self) -> Self:
        """Another one for another sequence, which shares what does not change."""
        return copy.copy(self)

    def prepare(self, model: Model) -> None:
        """Compile it in this process: for forms that are not a client's."""
        self.use(compiler.compile_form(self.kind, self.source, model), model)
