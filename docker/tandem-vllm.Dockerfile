# Prefill and decode workers on NVIDIA GPUs: vLLM's own image, and Tandem laid over it. docs/images.md says how to
# build it and what of it was tried.
#
#   docker build -f docker/tandem-vllm.Dockerfile -t tandem-vllm:dev .
#
# vLLM's CUDA, torch and kernels stay untouched in the environment they came in. Tandem gets one of its own, whose
# packages come first and which sees vLLM's behind them.
ARG VLLM_IMAGE=docker.io/vllm/vllm-openai:v0.32.0
# Of vLLM's Python version, so that compiled packages fit.
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm

# --- Tandem's packages ----------------------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS build
# The commit's time, so that two builds of it are equal; by default 1980, the earliest that a wheel can hold.
ARG SOURCE_DATE_EPOCH=315532800
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /src

# Wheels only, each by its hash, and no resolver: the lists are closed (`make lock` writes them). The secret is for a
# private index: docker build --secret id=pip,src=pip.conf
COPY docker/requirements-build.txt docker/requirements-vllm.txt docker/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python -m venv /opt/build \
    && /opt/build/bin/python -m pip install --no-deps --only-binary :all: --require-hashes \
        --requirement docker/requirements-build.txt \
    && python -m venv --without-pip /opt/venv \
    && python -m pip --python /opt/venv/bin/python install --no-deps --no-compile --only-binary :all: --require-hashes \
        --requirement docker/requirements-vllm.txt

COPY pyproject.toml README.md LICENSE NOTICE ./
COPY frontend frontend
COPY router router
COPY prefill_worker prefill_worker
COPY decode_worker decode_worker
COPY aggregated_worker aggregated_worker
# What a link of the tools' kit leads to.
COPY helm/tandem/dashboards helm/tandem/dashboards
COPY helm/tandem/rules helm/tandem/rules
COPY kits kits
COPY model model
COPY tandem tandem
RUN /opt/build/bin/python -m pip wheel --no-deps --no-build-isolation --no-index --wheel-dir /dist \
        . ./kits/answers ./kits/executor ./kits/guardrails ./kits/loop_grpc ./kits/sglang ./kits/sim ./kits/tiny ./kits/tools ./kits/vllm \
    && python -m pip --python /opt/venv/bin/python install --no-deps --no-compile --no-index /dist/*.whl \
    && /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/venv/lib

# --- the image ------------------------------------------------------------------------------------------------------
FROM ${VLLM_IMAGE}
ARG SOURCE_DATE_EPOCH=315532800
ARG VLLM_IMAGE
ARG VERSION=dev
ARG REVISION=unknown
ARG SOURCE=""
LABEL org.opencontainers.image.title="tandem-vllm" \
      org.opencontainers.image.description="Tandem's prefill and decode workers on vLLM" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${VLLM_IMAGE}"

# vLLM's image is run as root.
USER 0:0
COPY --from=build /opt/venv/lib/python3.12/site-packages /opt/venv/lib/python3.12/site-packages
COPY --from=build /opt/venv/bin/tandem* /opt/venv/bin/
COPY docker/lay_over.py /opt/tandem/lay_over.py
# The environment around Tandem's packages is made by vLLM's Python, and a .pth file adds vLLM's packages behind them,
# wherever the image keeps them. The kit is for one release of vLLM, and imports its NIXL.
RUN python3 -m venv --without-pip /opt/venv \
    && python3 /opt/tandem/lay_over.py path /opt/venv/lib/python3.12/site-packages/vllm.pth \
    && /opt/venv/bin/python /opt/tandem/lay_over.py check tracing hub vllm \
    && /opt/venv/bin/python /opt/tandem/lay_over.py brings "vllm==0.32.*" nixl \
    && groupadd --gid 10001 tandem \
    && useradd --no-log-init --no-create-home --uid 10001 --gid 10001 --home-dir /tmp --shell /usr/sbin/nologin tandem

# What is compiled or fetched at run time goes below /tmp/cache; a volume there keeps it over a restart, and the root
# may be read-only. What torch.compile makes of a model follows VLLM_CACHE_ROOT. Humming's kernels stay in each pod: it
# locks what it writes within a pod alone.
ENV PATH=/opt/venv/bin:${PATH} \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    XDG_CACHE_HOME=/tmp/cache \
    HF_HOME=/tmp/cache/huggingface \
    VLLM_CACHE_ROOT=/tmp/cache/vllm \
    CUDA_CACHE_PATH=/tmp/cache/nv \
    CUTE_DSL_CACHE_DIR=/tmp/cache/cute_dsl \
    DG_JIT_CACHE_DIR=/tmp/cache/deep_gemm \
    FLASHINFER_WORKSPACE_BASE=/tmp/cache \
    QUACK_CACHE_DIR=/tmp/cache/quack \
    TILELANG_CACHE_DIR=/tmp/cache/tilelang \
    TORCHINDUCTOR_CACHE_DIR=/tmp/cache/inductor \
    TORCH_EXTENSIONS_DIR=/tmp/cache/torch_extensions \
    TRITON_CACHE_DIR=/tmp/cache/triton \
    TVM_FFI_CACHE_DIR=/tmp/cache/tvm_ffi
WORKDIR /opt/tandem
USER 10001:10001
# The chart names the command, and Kubernetes probes /live and /ready.
ENTRYPOINT []
CMD ["tandem", "--help"]
