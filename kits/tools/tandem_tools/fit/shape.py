"""What a model's config.json says of the memory that it takes: weights and KV cache, without either
at hand.

Only matrices and embeddings are counted: norms and biases are below a thousandth of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tandem.errors import ConfigError
from tandem_tools.fit.quantisation import PLAIN_BYTES, Quantisation

_DTYPES = ("", "bfloat16", "float16", "float32")
_KV_BYTES = {"fp8_e4m3": 1, "fp8_e5m2": 1, "bfloat16": 2}
KV_DTYPES = ("auto", *_KV_BYTES)
_MOST = 100_000_000
"""No number of a model is larger."""
_MOST_LAYERS = 10_000
_INDEXED = ("deepseek_v32", "glm_moe_dsa")
"""Models that choose by an index of their own which tokens they look at (DSA)."""
_KNOWN = (
    *("deepseek_v3", "deepseek_v32", "glm4_moe", "glm_moe_dsa", "gpt_oss", "kimi_k2", "llama"),
    *("mimo", "minimax_m2", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe"),
)
"""Kinds of models that have nothing but what is counted here."""
A2A_BACKENDS = ("none", "deepep", "mooncake", "nixl", "mori", "flashinfer", "flashinfer_megamoe")
"""How tokens come to experts that lie on other ranks: SGLang's `moe_a2a_backend`, those with which
each rank has the shared experts whole, in every model here that has any.
"""
_GROUPED = (
    *("deepseek_v3", "glm4_moe", "gpt_oss", "kimi_k2", "minimax_m2", "qwen3", "qwen3_moe"),
    *_INDEXED,
)
"""Models whose attention SGLang divides by `attn_tp_size`."""
_EXPERTS = {
    "minimax_m2": "block_sparse_moe.experts.0.w1",
    "mixtral": "block_sparse_moe.experts.0.w1",
}
"""Where a model keeps its experts, if not in `mlp.experts`."""
_INDEX_GROUP = 128
"""Numbers that share a scale of four bytes: DSATokenToKVPool's quant_block_size."""
_ALL = 1 << 30
"""More ranks than there are."""

Phase = Literal["prefill", "decode"]
EngineName = Literal["sglang", "vllm"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What an engine is told of a model's memory, under the names of SGLang's options: of them vLLM
    takes the defaults alone.
    """

    engine: EngineName = "sglang"
    kv_cache_dtype: str = "auto"
    """One of KV_DTYPES."""
    moe_a2a_backend: str = "none"
    """One of A2A_BACKENDS."""
    ep_num_redundant_experts: int = 0
    """Copies of experts in each layer, for EPLB to place."""
    moe_dense_tp_size: int = 0
    """1: each GPU has the layers without experts whole. 0: all GPUs share them."""
    enable_dp_lm_head: bool = False
    """Each group of data-parallel ranks has the matrix that gives logits whole."""
    gpu_generation: int = 9
    """The first number of the GPU's compute capability: 9 of Hopper, 10 and 12 of Blackwell, 0 of a
    GPU that is not known.
    """


@dataclass(frozen=True, slots=True)
class SharedBytes:
    """A number of bytes, and by how many GPUs they can be shared."""

    bytes: float
    most_ranks: int = _ALL
    """Beyond these, ranks hold copies: KV heads, or 1 where nothing can be divided."""
    of_attention: bool = False
    """Each group of data-parallel ranks has them whole."""
    width: int = 0
    """What ranks share, where each takes whole steps of it; 0: they share the bytes equally."""
    step: int = 1
    parameters: int = 0
    """The numbers of a model that the bytes hold."""

    def of_gpu(self, division: Division) -> float:
        ranks = division.attention if self.of_attention else division.tensor
        if not self.width:
            return self.bytes / min(ranks, self.most_ranks)
        steps = -(-self.width // (ranks * self.step))
        return self.bytes * steps * self.step / self.width


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
class ModelShape:
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
    experts: int
    """Experts of a layer that has any."""
    vocabulary: int
    step_numbers: int
    """Numbers that a token has at once while a layer is computed."""
    sees: bool
    """The model has a part for pictures, which is not counted."""

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


def read(config: Mapping[str, Any], quantised: Quantisation, serving: Serving) -> ModelShape:
    """Raises ConfigError for a model whose memory does not follow from what is known here."""
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
        return _Reader(config, quantised, serving).shape()
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"config.json describes no model ({error})") from error


class _Reader:
    """Reads the keys that Hugging Face configurations of decoders have in common."""

    def __init__(
        self, config: Mapping[str, Any], quantised: Quantisation, serving: Serving
    ) -> None:
        self._config, self._quantised, self._serving = config, quantised, serving
        self._kind = config["model_type"]
        self._hidden = self._number("hidden_size", least=1)
        self._layers = self._number("num_hidden_layers", least=1, most=_MOST_LAYERS)
        self._heads = self._number("num_attention_heads", least=1)
        self._latent = self._number("kv_lora_rank", 0)
        kv_heads = self._number("num_key_value_heads", self._heads, least=1)
        self._kv_heads = 1 if self._latent else kv_heads
        self._head = self._number("head_dim", self._hidden // self._heads)

    def shape(self) -> ModelShape:
        table = self._number("vocab_size") * self._hidden
        tied = bool(self._config.get("tie_word_embeddings"))
        counted = [
            [*self._attention(layer), *self._feed_forward(layer)] for layer in range(self._layers)
        ]
        slides = self._slides()
        kv = SharedBytes(self._kv_of_layer(), self._kv_heads, of_attention=True)
        grouped_head = self._serving.enable_dp_lm_head
        return ModelShape(
            parameters=(1 if tied else 2) * table
            + sum(matrices.parameters for layer in counted for matrices in layer),
            heads=self._heads,
            kv_heads=self._kv_heads,
            latent=self._latent > 0,
            grouped=self._kind in _GROUPED,
            embeddings=SharedBytes(table * PLAIN_BYTES, of_attention=True),
            head=SharedBytes(table * PLAIN_BYTES, of_attention=grouped_head),
            tied=tied,
            layers=tuple(
                Layer(tuple(layer), kv, slide) for layer, slide in zip(counted, slides, strict=True)
            ),
            window=self._number("sliding_window") if any(slides) else 0,
            context_length=self._number("max_position_embeddings"),
            experts=self._experts(),
            vocabulary=self._number("vocab_size"),
            step_numbers=self._step_numbers(),
            sees="vision_config" in self._config,
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
        if self._kind in _INDEXED:
            return self._indexed_latent()
        size = _KV_BYTES.get(self._serving.kv_cache_dtype, PLAIN_BYTES)
        if self._serving.kv_cache_dtype == "auto" and self._quantised.fp8_kv:
            size = _KV_BYTES["fp8_e4m3"]
        if self._latent:
            return (self._latent + self._number("qk_rope_head_dim")) * size
        return 2 * self._kv_heads * self._head * size

    def _indexed_latent(self) -> int:
        """Bytes of a latent and of its key in the index, as SGLang 0.5.21 lays them out
        (`_dsa_kv_cache_dtype_default`, `calculate_mla_kv_cache_dim`).
        """
        rope, generation = self._number("qk_rope_head_dim"), self._serving.gpu_generation
        dtype = self._serving.kv_cache_dtype
        if dtype == "auto":
            if not generation:
                raise ConfigError(
                    "which KV cache SGLang takes for this model depends on the GPU: set --kv-dtype"
                    " to bfloat16 or fp8_e4m3"
                )
            dtype = "fp8_e4m3" if generation >= 10 else "bfloat16"
        if dtype not in ("bfloat16", "fp8_e4m3"):
            raise ConfigError(f"SGLang keeps this model's KV in bfloat16 or fp8_e4m3, not {dtype}")
        if dtype == "bfloat16":
            latent = 2 * (self._latent + rope)
        elif generation == 10 or (generation > 10 and self._kind != "glm_moe_dsa"):
            latent = self._latent + rope
        else:
            latent = self._latent + _scales(self._latent) + 2 * rope
        key = self._number("index_head_dim")
        return latent + key + _scales(key)

    def _attention(self, layer: int) -> list[SharedBytes]:
        if self._latent:
            return self._latent_attention(layer)
        # The second matrix of each is the one that leaves attention, and that of values.
        queries = 2 * self._hidden * self._heads * self._head
        keys = 2 * self._hidden * self._kv_heads * self._head
        size = self._size(layer, "self_attn.q_proj")
        return [
            SharedBytes(queries * size, of_attention=True, parameters=queries),
            SharedBytes(keys * size, self._kv_heads, of_attention=True, parameters=keys),
        ]

    def _latent_attention(self, layer: int) -> list[SharedBytes]:
        """What makes the latents is copied to each rank, what reads them divided."""
        rope, nope = self._number("qk_rope_head_dim"), self._number("qk_nope_head_dim")
        value, query_latent = self._number("v_head_dim"), self._number("q_lora_rank", 0)
        down = {
            "kv_a_proj_with_mqa": self._hidden * (self._latent + rope),
            "q_a_proj": self._hidden * query_latent,
        }
        up = {
            "q_b_proj" if query_latent else "q_proj": (
                (query_latent or self._hidden) * self._heads * (nope + rope)
            ),
            "kv_b_proj": self._latent * self._heads * (nope + value),
            "o_proj": self._heads * value * self._hidden,
        }
        if self._kind in _INDEXED:
            keys, index_heads = self._number("index_head_dim"), self._number("index_n_heads")
            down["indexer.wq_b"] = query_latent * index_heads * keys
            down["indexer.wk"] = self._hidden * (keys + index_heads)
        # SGLang keeps `kv_b_proj` beside the two matrices that it makes of it: w_kc and w_vc.
        absorbed = SharedBytes(up["kv_b_proj"] * PLAIN_BYTES, of_attention=True)
        return [
            self._sum(layer, down, most_ranks=1),
            self._sum(layer, up, most_ranks=_ALL),
            absorbed,
        ]

    def _sum(self, layer: int, parameters: Mapping[str, int], *, most_ranks: int) -> SharedBytes:
        taken = sum(
            number * self._size(layer, f"self_attn.{name}") for name, number in parameters.items()
        )
        return SharedBytes(
            taken, most_ranks, of_attention=True, parameters=sum(parameters.values())
        )

    def _feed_forward(self, layer: int) -> list[SharedBytes]:
        if not self._is_sparse(layer):
            dense = 3 * self._hidden * self._number("intermediate_size")
            size = self._size(layer, "mlp.gate_proj")
            ranks = self._serving.moe_dense_tp_size or _ALL
            return [SharedBytes(dense * size, ranks, parameters=dense)]
        expert, experts = 3 * self._hidden * self._expert_width(), self._experts()
        held = experts + self._serving.ep_num_redundant_experts
        of_expert = expert * self._size(layer, _EXPERTS.get(self._kind, "mlp.experts.0.gate_proj"))
        shared = expert * self._number("n_shared_experts", 0)
        shared += 3 * self._hidden * self._number("shared_intermediate_size", 0)
        of_shared = shared * self._size(layer, "mlp.shared_experts.gate_proj")
        spread = self._serving.moe_a2a_backend != "none"
        router = experts * self._hidden
        return [
            SharedBytes(of_shared, 1 if spread else _ALL, parameters=shared),
            self._padded(SharedBytes(held * of_expert, parameters=experts * expert), spread=spread),
            SharedBytes(router * PLAIN_BYTES, 1, parameters=router),
        ]

    def _step_numbers(self) -> int:
        """The input of a layer, its sum and its norm, and beside them what comes in, what the gate
        makes of that and the product, once for each expert that a token goes to.
        """
        if not self._experts():
            return 3 * self._hidden + 3 * self._number("intermediate_size")
        keys = ("num_experts_per_tok", "experts_per_token")
        chosen = next((self._number(key) for key in keys if self._config.get(key)), 1)
        return 3 * self._hidden + chosen * (3 * self._expert_width() + self._hidden)

    def _padded(self, experts: SharedBytes, *, spread: bool) -> SharedBytes:
        """Experts in four bits as SGLang 0.5.21 lays them out (`Mxfp4MoEMethod.create_weights`): a
        rank's part of their width in whole steps, and on Blackwell so their inputs. vLLM 0.32
        rounds both up (`mxfp4_round_up_hidden_size_and_intermediate_size`), most for the kernels of
        Marlin and of TensorRT-LLM, which are counted.
        """
        if not self._quantised.padded or spread:
            return experts
        if self._serving.engine == "vllm":
            hidden, width = _up(self._hidden, 256), _up(self._expert_width(), 128)
            more = hidden * width / (self._hidden * self._expert_width())
            return replace(experts, bytes=experts.bytes * more)
        step = 128 if self._serving.gpu_generation == 10 else 64
        hidden = _up(self._hidden, step) if step == 128 else self._hidden
        return replace(
            experts,
            bytes=experts.bytes * hidden / self._hidden,
            width=self._expert_width(),
            step=step,
        )

    def _size(self, layer: int, module: str) -> float:
        return self._quantised.bytes_of(f"layers.{layer}.{module}")

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


def _up(number: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-number // step) * step


def _scales(numbers: int) -> int:
    """Bytes of the scales of so many numbers in FP8."""
    return numbers // _INDEX_GROUP * 4
