"""What a model's config.json says of the memory that it takes: weights and KV cache, without either
at hand.

Only matrices and embeddings are counted: norms and biases are below a thousandth of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tandem.errors import ConfigError

_DTYPES = ("", "bfloat16", "float16", "float32")
_PLAIN_BYTES = 2
"""SGLang computes in half precision, also where a model is stored in single or says nothing."""
_KV_BYTES = {"fp8_e4m3": 1, "fp8_e5m2": 1, "bfloat16": 2}
KV_DTYPES = ("auto", *_KV_BYTES)
_MOST = 100_000_000
"""No number of a model is larger."""
_MOST_LAYERS = 10_000
_GROUP = 128
"""Weights that share a scale, in AWQ and GPTQ unless they say so."""
_KNOWN = (
    *("deepseek_v3", "glm4_moe", "gpt_oss", "kimi_k2", "llama", "mistral", "mixtral", "phi3"),
    *("qwen2", "qwen3", "qwen3_moe"),
)
"""Kinds of models that have nothing but what is counted here."""
A2A_BACKENDS = ("none", "deepep", "mooncake", "nixl", "mori", "flashinfer", "flashinfer_megamoe")
"""How tokens come to experts that lie on other ranks: SGLang's `moe_a2a_backend`, those with which
each rank has the shared experts whole, in every model here that has any.
"""
_GROUPED = ("deepseek_v3", "glm4_moe", "gpt_oss", "kimi_k2", "qwen3", "qwen3_moe")
"""Models whose attention SGLang divides by `attn_tp_size`."""

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Division:
    """How GPUs share a model, as SGLang divides it."""

    tensor: int
    """GPUs that share each layer."""
    groups: int = 1
    """How many groups these GPUs form with DP attention, each with attention and KV of its own."""
    parts: int = 1
    """Pipeline parallelism: so many times these GPUs, with some of the layers each."""

    @property
    def gpus(self) -> int:
        return self.tensor * self.parts

    @property
    def attention(self) -> int:
        """GPUs that share the attention of a layer."""
        return self.tensor // self.groups


@dataclass(frozen=True, slots=True)
class SharedBytes:
    """A number of bytes, and by how many GPUs they can be shared."""

    bytes: float
    most_ranks: int
    """Beyond these, ranks hold copies: KV heads, or 1 where nothing can be divided."""
    of_attention: bool = False
    """Each group of data-parallel ranks has them whole."""

    def of_gpu(self, division: Division) -> float:
        ranks = division.attention if self.of_attention else division.tensor
        return self.bytes / min(ranks, self.most_ranks)


@dataclass(frozen=True, slots=True)
class Layer:
    weights: tuple[SharedBytes, ...]
    kv: SharedBytes
    """Bytes a token."""
    slides: bool
    """Whether the layer looks at a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePart:
    """What a GPU of a part of a pipeline holds, in bytes."""

    weights: float
    kv: float
    """Bytes a token, in layers that look at everything."""
    sliding_kv: float
    """Bytes a token, in layers that look at a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's memory, as far as its configuration tells it."""

    parameters: int
    heads: int
    kv_heads: int
    """1 with latent attention, whose cache has no heads."""
    latent: bool
    """Whether attention keeps latents (MLA) and not keys and values."""
    grouped: bool
    """SGLang computes its attention in data-parallel groups, if asked to."""
    embeddings: SharedBytes
    head: SharedBytes
    """The matrix that gives logits."""
    tied: bool
    """The matrix is the embeddings too, where one GPU has both."""
    layers: tuple[Layer, ...]
    window: int
    """Tokens that layers with a window look at; 0: there are none."""
    context_length: int

    def parts(self, division: Division) -> list[PipelinePart]:
        """The last parts have a layer more where layers do not divide: SGLang's `get_pp_indices`.
        The first has the embeddings too, the last the head.
        """
        least, more = divmod(len(self.layers), division.parts)
        parts, begin = [], 0
        for number in range(division.parts):
            end = begin + least + (number >= division.parts - more)
            own = [weights for layer in self.layers[begin:end] for weights in layer.weights]
            first, last = number == 0, number == division.parts - 1
            own += [self.embeddings] * first + [self.head] * (last and not (self.tied and first))
            parts.append(
                PipelinePart(
                    weights=sum(each.of_gpu(division) for each in own),
                    kv=_kv_of(self.layers[begin:end], division, slides=False),
                    sliding_kv=_kv_of(self.layers[begin:end], division, slides=True),
                )
            )
            begin = end
        return parts


def _kv_of(layers: Sequence[Layer], division: Division, *, slides: bool) -> float:
    return sum(layer.kv.of_gpu(division) for layer in layers if layer.slides is slides)


def read(
    config: Mapping[str, Any], *, kv_dtype: str = "auto", moe_a2a_backend: str = "none"
) -> Shape:
    """`kv_dtype`: one of KV_DTYPES; `moe_a2a_backend`: one of A2A_BACKENDS. Raises ConfigError for
    a model whose memory does not follow from what is known here.
    """
    kind = config.get("model_type")
    if kind not in _KNOWN:
        raise ConfigError(
            f"config.json: the memory of a model of type {kind!r} is not known; known types: "
            f"{', '.join(_KNOWN)}"
        )
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    if dtype not in _DTYPES:
        raise ConfigError(f"config.json: dtype {dtype!r} is none of {', '.join(_DTYPES)}")
    try:
        return _Reader(config, kv_dtype, moe_a2a_backend).shape()
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"config.json describes no model ({error})") from error


class _Reader:
    """Reads the keys that Hugging Face configurations of decoders have in common."""

    def __init__(self, config: Mapping[str, Any], kv_dtype: str, moe_a2a_backend: str) -> None:
        self._config = config
        self._shared_by = _ALL if moe_a2a_backend == "none" else 1
        self._hidden = self._number("hidden_size", least=1)
        self._layers = self._number("num_hidden_layers", least=1, most=_MOST_LAYERS)
        self._heads = self._number("num_attention_heads", least=1)
        self._latent = self._number("kv_lora_rank", 0)
        kv_heads = self._number("num_key_value_heads", self._heads, least=1)
        self._kv_heads = 1 if self._latent else kv_heads
        self._head = self._number("head_dim", self._hidden // self._heads)
        self._kv_bytes = _KV_BYTES.get(kv_dtype, _PLAIN_BYTES)
        self._quantised = _Quantisation.of(config)

    def shape(self) -> Shape:
        table = self._number("vocab_size") * self._hidden
        tied = bool(self._config.get("tie_word_embeddings"))
        counted = [
            [*self._attention(), *self._feed_forward(layer)] for layer in range(self._layers)
        ]
        slides = self._slides()
        kv = SharedBytes(self._kv_of_layer(), self._kv_heads, of_attention=True)
        return Shape(
            parameters=(1 if tied else 2) * table
            + sum(number for layer in counted for number, *_ in layer),
            heads=self._heads,
            kv_heads=self._kv_heads,
            latent=self._latent > 0,
            grouped=self._config["model_type"] in _GROUPED,
            embeddings=SharedBytes(table * _PLAIN_BYTES, _ALL, of_attention=True),
            head=SharedBytes(table * _PLAIN_BYTES, _ALL),
            tied=tied,
            layers=tuple(
                Layer(tuple(SharedBytes(n * size, *shared) for n, size, shared in layer), kv, slide)
                for layer, slide in zip(counted, slides, strict=True)
            ),
            window=self._number("sliding_window") if any(slides) else 0,
            context_length=self._number("max_position_embeddings"),
        )

    def _slides(self) -> list[bool]:
        """Whether each layer looks at a window. Raises ConfigError where all do."""
        kinds = list(self._config.get("layer_types") or ())
        slides = [kind == "sliding_attention" for kind in kinds[: self._layers]]
        slides += [False] * (self._layers - len(slides))
        if all(slides):
            raise ConfigError(
                "config.json: all layers look at a window, and how SGLang divides memory then is"
                " not known"
            )
        return slides

    def _kv_of_layer(self) -> int:
        """Bytes of a token: keys and values of each KV head, or one latent for all heads."""
        if self._latent:
            return (self._latent + self._number("qk_rope_head_dim")) * self._kv_bytes
        return 2 * self._kv_heads * self._head * self._kv_bytes

    def _attention(self) -> list[_Counted]:
        size = self._quantised.attention
        if self._latent:
            return [(n, size, (ranks, True)) for n, ranks in self._latent_matrices()]
        # The second matrix of each is the one that leaves attention, and that of values.
        queries = 2 * self._hidden * self._heads * self._head
        keys = 2 * self._hidden * self._kv_heads * self._head
        return [(queries, size, (_ALL, True)), (keys, size, (self._kv_heads, True))]

    def _latent_matrices(self) -> list[tuple[int, int]]:
        """What makes the latents is copied to each rank, what reads them divided."""
        rope, nope = self._number("qk_rope_head_dim"), self._number("qk_nope_head_dim")
        value, query_latent = self._number("v_head_dim"), self._number("q_lora_rank", 0)
        down = self._hidden * (self._latent + rope + query_latent)
        queries = (query_latent or self._hidden) * self._heads * (nope + rope)
        up = self._latent * self._heads * (nope + value)
        return [(down, 1), (queries + up + self._heads * value * self._hidden, _ALL)]

    def _feed_forward(self, layer: int) -> list[_Counted]:
        if not self._is_sparse(layer):
            dense = 3 * self._hidden * self._number("intermediate_size")
            return [(dense, self._quantised.dense, (_ALL, False))]
        expert, experts = 3 * self._hidden * self._expert_width(), self._experts()
        shared = expert * self._number("n_shared_experts", 0)
        return [
            (shared, self._quantised.dense, (self._shared_by, False)),
            (experts * expert, self._quantised.experts, (_ALL, False)),
            (experts * self._hidden, _PLAIN_BYTES, (1, False)),  # the router
        ]

    def _experts(self) -> int:
        keys = ("num_experts", "n_routed_experts", "num_local_experts")
        return next((self._number(key) for key in keys if self._config.get(key)), 0)

    def _expert_width(self) -> int:
        """Mixtral's and gpt-oss's configurations have one width for what they have of either."""
        return self._number("moe_intermediate_size", self._number("intermediate_size"))

    def _is_sparse(self, layer: int) -> bool:
        if not self._experts() or layer < self._number("first_k_dense_replace", 0):
            return False
        dense_only = self._config.get("mlp_only_layers") or ()
        return (layer + 1) % self._number("decoder_sparse_step", 1) == 0 and layer not in dense_only

    def _number(
        self, key: str, default: int | None = None, *, least: int = 0, most: int = _MOST
    ) -> int:
        value = self._config.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"config.json: {key} must be a number, not {value!r}")
        if not least <= value <= most:
            raise ConfigError(f"config.json: {key} must be from {least} to {most}, not {value}")
        return value


_Counted = tuple[int, float, tuple[int, bool]]
"""Parameters of a layer, bytes of each, and by whom they are shared: see SharedBytes."""
_ALL = 1 << 30


@dataclass(frozen=True, slots=True)
class _Quantisation:
    """Bytes of a weight, with its share of the scales."""

    attention: float
    dense: float
    experts: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> _Quantisation:
        """Raises ConfigError for a way that is not known here."""
        given = config.get("quantization_config")
        if not given:
            return cls(_PLAIN_BYTES, _PLAIN_BYTES, _PLAIN_BYTES)
        size = _quantised_bytes(given)
        spared = str(given.get("modules_to_not_convert") or given.get("ignore") or ())
        return cls(_PLAIN_BYTES if "attn" in spared else size, size, size)


def _quantised_bytes(given: Mapping[str, Any]) -> float:
    method = str(given.get("quant_method"))
    if method == "fp8":
        rows, columns = given.get("weight_block_size") or (_GROUP, _GROUP)
        return 1 + 4 / (rows * columns)
    if method == "mxfp4":
        return (4 + 8 / 32) / 8
    if method in ("awq", "gptq"):
        bits = given.get("bits", 4)
        return float(bits + (16 + bits) / (given.get("group_size") or _GROUP)) / 8
    raise ConfigError(
        f"config.json: quantization method {method!r} is none of awq, fp8, gptq, mxfp4"
    )
