# Frontend, router, sim workers and the `tandem` command: no torch, no GPU. docs/images.md says how to build it.
#
# The context is the repository's root:  docker build -f docker/tandem.Dockerfile -t tandem:dev .
# A release passes PYTHON_IMAGE with the digest that the tag had that day, and records it as a label.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm

# --- the environment ------------------------------------------------------------------------------------------------
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
COPY docker/requirements-build.txt docker/requirements-tandem.txt docker/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python -m venv /opt/build \
    && /opt/build/bin/python -m pip install --no-deps --only-binary :all: --require-hashes \
        --requirement docker/requirements-build.txt \
    && python -m venv --without-pip /opt/venv \
    && python -m pip --python /opt/venv/bin/python install --no-deps --no-compile --only-binary :all: --require-hashes \
        --requirement docker/requirements-tandem.txt

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
# NIXL's kernels of expert parallelism, 91 MB, are for torch and GPUs. Byte code never looks at its source's time: it is
# the same in every build, and a read-only root needs none written.
RUN /opt/build/bin/python -m pip wheel --no-deps --no-build-isolation --no-index --wheel-dir /dist \
        . ./kits/answers ./kits/executor ./kits/guardrails ./kits/loop_grpc ./kits/sglang ./kits/sim ./kits/tiny ./kits/tools ./kits/vllm \
    && python -m pip --python /opt/venv/bin/python install --no-deps --no-compile --no-index /dist/*.whl \
    && rm -r /opt/venv/lib/python3.11/site-packages/nixl_ep_cu13 \
    && /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/venv/lib

# --- the image ------------------------------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE}
ARG SOURCE_DATE_EPOCH=315532800
ARG PYTHON_IMAGE
ARG VERSION=dev
ARG REVISION=unknown
ARG SOURCE=""
LABEL org.opencontainers.image.title="tandem" \
      org.opencontainers.image.description="Tandem's frontend, router, simulated workers and command line" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"

# A name for the number: some libraries ask who they run as.
RUN groupadd --gid 10001 tandem \
    && useradd --no-log-init --no-create-home --uid 10001 --gid 10001 --home-dir /tmp --shell /usr/sbin/nologin tandem

COPY --from=build /opt/venv /opt/venv
# Where the chart names the tiny model.
RUN mkdir /opt/tandem && ln -s /opt/venv/lib/python3.11/site-packages/tandem_tiny /opt/tandem/model

ENV PATH=/opt/venv/bin:${PATH} \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /opt/tandem
USER 10001:10001
# No entrypoint: the chart names the command. No HEALTHCHECK: Kubernetes probes /live and /ready.
CMD ["tandem", "--help"]
